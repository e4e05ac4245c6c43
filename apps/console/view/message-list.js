// List of messages beside the one that is chosen, for the tabs that show messages.

import { h, put, setAttr, setClass, setText } from "../base/dom.js";
import { bytes, moment } from "../base/format.js";
import { messageView, oneLine, shortText } from "./body.js";
import { messageButtons, topicSelection } from "./message-actions.js";
import { figureCell } from "./parts.js";
import { Selection } from "./selection.js";
import { Table } from "./table.js";

export class MessageList {
  /** `way` is the order of the offsets: 1, or -1 for the newest first. `picked(offset)` is called
   * when the user chooses a message. */
  constructor({ topic, model, label, empty, way, picked = () => {} }) {
    this.picked = picked;
    this.model = model;
    this.topic = topic;
    this.chosen = null;
    this.none = h("div.empty", {}, h("span", {}, "Choose a message to see all of it."));
    this.detail = h("div", {}, this.none);
    this.selection = new Selection(topicSelection(topic, model));
    this.table = new Table({ label, columns: [this.selection.column(), ...columns((message) => this.#pick(message))], id: (message) => String(message.offset), sort: ["offset", way], empty });
    this.selection.refresh = () => this.table.refresh();
    const list = h("div.list", {}, this.selection.element, this.table.element);
    list.addEventListener("click", (event) => {
      const row = event.target.closest("tbody tr")?.row;
      if (row) this.#pick(row.data);
    });
    this.element = h("section.panel.messages", { "aria-label": "Messages" }, list, this.detail);
  }

  #pick(message) {
    this.choose(message);
    this.picked(message.offset);
  }

  /** Show all of a message. */
  choose(message) {
    this.chosen = message.offset;
    put(this.detail, messageView(message, this.topic, messageButtons(message, this.topic, this.model)));
    this.#mark();
  }

  update(messages) {
    this.table.update(messages);
    this.selection.update(messages);
    setClass(this.table.table, "with-errors", messages.some((one) => errorOf(one) !== ""));
    this.#mark();
  }

  /** Show no message. */
  clear() {
    this.chosen = null;
    this.table.update([]);
    this.selection.update([]);
    put(this.detail, this.none);
  }

  #mark() {
    for (const row of this.table.rows.values()) {
      if (!row.tr) continue;
      setClass(row.tr, "chosen", row.data.offset === this.chosen);
      setAttr(row.tr, "aria-selected", row.data.offset === this.chosen ? "true" : null);
    }
  }

  close() {
    this.table.close();
  }
}

/** Return the last line of the error of a dead letter: a traceback ends with the exception. */
function errorOf(message) {
  const told = message.headers?.["zsq-dead-error"] ?? message.headers?.["zsq-dead-reason"];
  return typeof told === "string" ? told.trim().split("\n").at(-1) : "";
}

function columns(choose) {
  return [
    {
      key: "offset", title: "Offset", width: "104px", value: (one) => one.offset,
      make: (cell, one) => cell.append(h("button.button.plain.small", { type: "button", on: { click: () => choose(one), focus: () => choose(one) } }, String(one.offset))),
    },
    { key: "time", title: "Stored", width: "126px", rank: 2, show: (cell, one) => figureCell(cell, moment(one.time_ms), 1) },
    { key: "key", title: "Key", width: "96px", rank: 3, show: (cell, one) => setText(cell, shortText(one.key)) },
    { key: "body", title: "Body", show: (cell, one) => { setText(cell, oneLine(one.body)); cell.classList.add("peek-body"); } },
    // only where a message has one: the messages of a dead-letter topic
    { key: "error", title: "Error", width: "34%", show: (cell, one) => { setText(cell, errorOf(one)); setAttr(cell, "title", errorOf(one)); } },
    { key: "size", title: "Size", num: true, width: "76px", rank: 3, show: (cell, one) => figureCell(cell, bytes(one.size), one.size) },
  ];
}
