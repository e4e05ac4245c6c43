// Tab of a dead-letter topic: its newest letters grouped by error. A group shows its letters.

import { every, get } from "../base/api.js";
import { h, put, setText, show } from "../base/dom.js";
import { count, moment, plural, relative } from "../base/format.js";
import { may } from "../base/model.js";
import { amend, link } from "../base/router.js";
import { MessageList } from "../view/message-list.js";
import { asked, empty, figureCell } from "../view/parts.js";
import { Table } from "../view/table.js";

const MS = 10_000;
const BODY_MAX = 16_384;

export function errorsTab({ topic, model, query, signal }) {
  let group = query.group ?? "";
  const sum = h("span.quiet", { role: "status" });
  const failed = h("p.note.warn", { hidden: true });
  const choose = (id) => {
    group = id;
    amend({ group });
    void load();
  };
  const table = new Table({ label: `Errors of ${topic}`, columns: columns(model, choose), id: (one) => one.id, sort: ["count", -1], query, empty: empty("No dead letters", "None waits to be sent back.") });
  const list = new MessageList({ topic, model, label: "Dead letters with this error", way: -1, empty: empty("No letter", "The newest dead letters have this error no more.") });
  const title = h("h2", {});
  const letters = h("div.stack", {}, title, list.element);
  show(letters, false);
  const element = h("div.stack", {}, failed, h("section.panel", { "aria-label": "Errors" }, h("header", {}, h("h2", {}, "Errors"), sum), table.element), letters);
  const load = () => asked(failed, signal, async () => {
    if (!may(model.topic(topic), "s")) return;
    const found = await get("/api/dead-letters", { topic, group, body_max: BODY_MAX }, signal);
    table.update(found.groups);
    const all = `all ${plural(found.read, "dead letter")}`;
    setText(sum, [found.read && `of ${found.all ? all : `the last ${plural(found.read, "dead letter")}`}`, found.missing && `${count(found.missing).exact} cannot be read`].filter(Boolean).join(", "));
    const chosen = found.groups.find((one) => one.id === group);
    show(letters, group !== "");
    setText(title, chosen ? words(chosen) : "");
    list.update(found.messages);
    if (found.messages.length && !found.messages.some((one) => one.offset === list.chosen)) list.choose(found.messages[0]);
  });
  let begun = false;
  return {
    element,
    update() {
      if (begun) return;
      begun = true;
      if (!may(model.topic(topic), "s")) {
        put(failed, "Your token does not permit reading the messages of this topic. It needs the permission subscribe.");
        show(failed, true);
      } else void every(MS, load, signal);
    },
    tick: () => table.refresh(),
    close: () => { table.close(); list.close(); },
  };
}

function words(one) {
  return one.error || one.reason || "no error";
}

function columns(model, choose) {
  const time = (key, title, rank) => ({ key, title, num: true, width: "112px", rank, value: (one) => one[`${key}_ms`], show: (cell, one) => figureCell(cell, { text: relative(one[`${key}_ms`], model.now()).text, exact: moment(one[`${key}_ms`]).exact }, 1) });
  return [
    {
      key: "error", title: "Error", value: words,
      make: (cell, one) => cell.append(h("button.button.plain.small", { type: "button", title: words(one), on: { click: () => choose(one.id) } }, words(one))),
    },
    { key: "reason", title: "Reason", width: "120px", rank: 2, value: (one) => one.reason, show: (cell, one) => setText(cell, one.reason) },
    {
      key: "from", title: "Channel", width: "20%", rank: 3, value: (one) => `${one.topic}/${one.channel}`,
      make: (cell, one) => one.channel && cell.append(h("a.linked", { href: link("topics", one.topic, "channels", one.channel), title: `${one.topic}/${one.channel}` }, `${one.topic} / ${one.channel}`)),
    },
    { key: "count", title: "Letters", num: true, width: "88px", value: (one) => one.count, show: (cell, one) => figureCell(cell, count(one.count), one.count) },
    time("oldest", "Oldest", 2), time("newest", "Newest", 1),
  ];
}
