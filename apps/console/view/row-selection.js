// Actions on several topics or channels at once: the check boxes of a table, the bar with what can be
// done to the selected rows, and the dialog that names them all.
//
// Each row is a request of its own, which carries what the dialog has shown of that row. So the
// broker checks permissions and changes for each, and one that is refused does not stop the others.

import { explain, get, post, Wrong } from "../base/api.js";
import { h, setText, show } from "../base/dom.js";
import { count, plural } from "../base/format.js";
import { may } from "../base/model.js";
import { button, permit } from "./parts.js";
import { confirm } from "./dialog.js";
import { tell } from "./toast.js";

const MOST = 100; // rows of one action
const AT_ONCE = 4; // requests that run at the same time
const ACTIONS = {
  pause: { title: "Pause", done: "paused" }, unpause: { title: "Unpause", done: "unpaused" },
  empty: { title: "Empty", done: "emptied", typed: true }, delete: { title: "Delete", done: "deleted", typed: true, kind: "danger" },
};

export class RowSelection {
  /** `kind` is "topic" or "channel". `table()` returns the table. */
  constructor(kind, table) {
    Object.assign(this, { kind, table, chosen: new Set() });
    this.number = h("strong", { role: "status" });
    this.buttons = Object.entries(ACTIONS).map(([action, { title, kind: look }]) => button(title, () => void this.#act(action), { kind: look }));
    this.bar = h("div.toolbar.selected", { role: "group", "aria-label": `Selected ${kind}s`, hidden: true }, this.number, this.buttons, button("Clear", () => this.#clear(), { kind: "plain" }));
    this.all = h("input", { type: "checkbox", "aria-label": `Select all ${kind}s that are shown`, on: { change: () => this.#all(this.all.checked) } });
    this.column = {
      key: "pick", title: "", width: "38px", head: this.all,
      make: (cell, row) => {
        cell.box = h("input", { type: "checkbox", "aria-label": `Select ${this.#name(row)}`, on: { change: () => this.#pick(row, cell.box.checked) } });
        cell.append(cell.box);
      },
      show: (cell, row) => { cell.box.checked = this.chosen.has(this.table().id(row)); },
    };
  }

  /** Follow the rows of the table: deleted ones are no longer selected. */
  update() {
    for (const id of this.chosen) if (!this.table().rows.has(id)) this.chosen.delete(id);
    const rows = this.#rows();
    show(this.bar, rows.length > 0);
    setText(this.number, `${plural(rows.length, this.kind)} selected`);
    const shown = this.table().matching();
    this.all.checked = shown.length > 0 && shown.every((row) => this.chosen.has(row.id));
    this.all.indeterminate = rows.length > 0 && !this.all.checked;
    for (const one of this.buttons) {
      permit(one, rows.every((row) => may(row, "a")), `admin on each selected ${this.kind}`);
      if (rows.length <= MOST) continue;
      one.disabled = true;
      one.title = `Select at most ${MOST} ${this.kind}s.`;
    }
  }

  #name(row) {
    return this.kind === "topic" ? row.name : `${row.topic}/${row.name}`;
  }

  #rows() {
    return [...this.chosen].map((id) => this.table().rows.get(id).data);
  }

  #pick(row, on) {
    if (on) this.chosen.add(this.table().id(row));
    else this.chosen.delete(this.table().id(row));
    this.update();
  }

  /** Select all rows that match the filter, or none. */
  #all(on) {
    for (const { id } of this.table().matching()) {
      if (on) this.chosen.add(id);
      else this.chosen.delete(id);
    }
    this.table().refresh();
    this.update();
  }

  #clear() {
    this.chosen.clear();
    this.table().refresh();
    this.update();
  }

  async #act(action) {
    const { title, typed } = ACTIONS[action];
    const ones = this.#rows().map((row) => ({ id: this.table().id(row), name: this.#name(row), query: this.kind === "topic" ? { topic: row.name } : { topic: row.topic, channel: row.name } }));
    const many = plural(ones.length, this.kind);
    let known = new Map(); // name -> what the dialog has shown of it
    const ask = async () => {
      const found = await each(ones, async (one) => get("/api/preview", { action: `${this.kind}.${action}`, ...one.query }));
      known = new Map(found.filter((one) => one.answer).map((one) => [one.name, one.answer]));
      return together(found);
    };
    const act = async () => this.#report(action, await each(ones, async (one) => {
      const said = known.get(one.name);
      if (action !== "unpause" && !said) throw new Wrong("The dialog could not show what it does.");
      return post(`/api/${this.kind}/${action}`, one.query, { ...(said ? { seen: said.seen } : {}), ...(action === "delete" ? { force: true } : {}) });
    }));
    if (action === "unpause") await act();
    else {
      await confirm({
        title: `${title} ${many}?`, text: ones.map((one) => one.name).join(", "), query: {}, preview: ask, act, submit: `${title} ${many}`, danger: Boolean(typed),
        name: typed ? `${action} ${many}` : "", needs: () => (typed ? "type" : "agree"),
      });
    }
  }

  /** Say what became of each row. Those that failed stay selected. */
  #report(action, found) {
    const bad = found.filter((one) => one.error);
    for (const one of found) if (!one.error) this.chosen.delete(one.id);
    this.table().refresh();
    this.update();
    const { done } = ACTIONS[action];
    if (!bad.length) tell(found.length === 1 ? `${found[0].name} is ${done}.` : `${plural(found.length, this.kind)} are ${done}.`);
    else tell([`${found.length - bad.length} of ${plural(found.length, this.kind)} are ${done}. These are not:`, h("ul", {}, bad.map((one) => h("li", {}, `${one.name}: ${one.error}`)))], true);
    return true;
  }
}

/** Call `act` for each, AT_ONCE at a time. Return them with `answer` or with `error`, a sentence. */
async function each(ones, act) {
  const left = [...ones.entries()];
  const found = [];
  const work = async () => {
    for (let next = left.shift(); next; next = left.shift()) {
      const [at, one] = next;
      try {
        found[at] = { ...one, answer: await act(one) };
      } catch (error) {
        found[at] = { ...one, error: explain(error) };
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return found;
}

/** Join previews into one: the sums of what is lost, and the sentences of those that lose something. */
function together(found) {
  const sums = new Map();
  for (const { answer } of found) for (const { what, count: number } of answer?.loses ?? []) sums.set(what, (sums.get(what) ?? 0) + number);
  const lost = [...sums].map(([what, number]) => `${count(number).exact} ${what}`).join(", ");
  const of = found.filter((one) => one.error || !one.answer.harmless).map((one) => `${one.name}: ${one.error ? `${one.error} Nothing is done to it.` : one.answer.loses.map(({ what, count: number }) => `${count(number).exact} ${what}`).join(", ")}`);
  return {
    says: [lost ? `In all: ${lost}.` : "Nothing is lost.", ...of], harmless: !lost && found.every((one) => !one.error), unknown: found.some((one) => one.answer?.unknown), seen: { uuid: "" },
  };
}
