// Selection of messages in a table: a box in each row, and a bar with the actions on what is chosen.

import { h, setClass, setText } from "../base/dom.js";
import { plural } from "../base/format.js";
import { button, permit } from "./parts.js";

export class Selection {
  /** `actions` are [{text, danger, needs, permitted(), shown(rows), act(offsets)}]. `needs` names
   * the permission, and `shown` is optional. If `act` resolves to a true value, nothing is chosen
   * afterwards. */
  constructor(actions) {
    this.rows = [];
    this.chosen = new Set();
    this.refresh = () => {}; // set by the owner of the table
    this.text = h("span.quiet", { role: "status" });
    this.all = button("Select all", () => this.#choose(this.chosen.size < this.rows.length ? this.rows : []), { kind: "small" });
    this.actions = actions.map((action) => ({ ...action, element: button(action.text, () => void this.#act(action), { kind: action.danger ? "small.danger" : "small" }) }));
    this.element = h("div.toolbar.selection", { role: "group", "aria-label": "Selected messages" }, this.all, this.text, h("div.end", {}, this.actions.map((one) => one.element)));
    this.#draw();
  }

  /** The column with the boxes. */
  column() {
    return {
      key: "pick", title: "Select", width: "58px",
      make: (cell, one) => {
        const box = h("input", { type: "checkbox", "aria-label": `Select message ${one.offset}` });
        box.addEventListener("change", () => {
          if (box.checked) this.chosen.add(one.offset);
          else this.chosen.delete(one.offset);
          this.#draw();
        });
        cell.addEventListener("click", (event) => event.stopPropagation());
        cell.append(box);
      },
      show: (cell, one) => { cell.firstChild.checked = this.chosen.has(one.offset); },
    };
  }

  /** Set the messages of the table. Those that are gone are not chosen any more. */
  update(rows) {
    this.rows = rows;
    const there = new Set(rows.map((one) => one.offset));
    for (const offset of this.chosen) if (!there.has(offset)) this.chosen.delete(offset);
    this.#draw();
  }

  #choose(rows) {
    this.chosen = new Set(rows.map((one) => one.offset));
    this.refresh();
    this.#draw();
  }

  async #act(action) {
    if (await action.act([...this.chosen].sort((a, b) => a - b))) this.#choose([]);
  }

  #draw() {
    const all = this.rows.length > 0 && this.chosen.size === this.rows.length;
    setText(this.all, all ? "Select none" : "Select all");
    this.all.disabled = !this.rows.length;
    setText(this.text, this.chosen.size ? `${plural(this.chosen.size, "message")} selected` : "");
    for (const { element, needs, permitted, shown } of this.actions) {
      permit(element, permitted(), needs);
      element.disabled ||= !this.chosen.size;
      setClass(element, "gone", Boolean(shown) && !shown(this.rows));
    }
  }
}
