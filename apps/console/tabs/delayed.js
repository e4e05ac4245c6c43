// Tab of delayed messages that are not due, the soonest first. They can be cancelled here.

import { every, get, post } from "../base/api.js";
import { h, setText, show } from "../base/dom.js";
import { bytes, count, moment, relative } from "../base/format.js";
import { may } from "../base/model.js";
import { confirm } from "../view/dialog.js";
import { asked, button, empty, figureCell, permit } from "../view/parts.js";
import { Table } from "../view/table.js";
import { tell } from "../view/toast.js";
import { oneLine } from "../view/body.js";

const MS = 3000;
const PAGE = 100;

export function delayedTab({ topic, model, query, signal }) {
  let limit = PAGE;
  const sum = h("span.quiet");
  const failed = h("p.note.warn", { hidden: true });
  const cancel = async (message) => {
    const answer = await confirm({
      title: `Cancel this message of ${topic}?`, text: `Due ${moment(message.due_ms).text}: “${oneLine(message.body).slice(0, 80)}”. It will not be published. This cannot be undone.`, submit: "Cancel the message",
      act: () => post("/api/delayed/cancel", { topic }, { keys: [message.key] }),
    });
    if (answer) tell(answer.cancelled === 0 ? "Not cancelled: the message was due and is in the topic now." : "Cancelled.", answer.cancelled === 0);
    void load();
  };
  const table = new Table({
    label: `Delayed messages of ${topic}`, columns: columns(model, topic, cancel), id: (message) => message.key, sort: ["due", 1], query,
    empty: empty("Nothing is delayed", "Publish a message with a delay:", `echo 'wake up' | zsq pub ${topic} --delay 10m`),
  });
  const all = button("Cancel all", async () => {
    const answer = await confirm({ title: `Cancel all delayed messages of ${topic}?`, query: { action: "delayed.cancel", topic }, name: topic, submit: "Cancel all of them", act: (seen) => post("/api/delayed/cancel", { topic }, { all: true, seen }) });
    if (answer) tell(`${count(answer.cancelled).text} cancelled.`);
    void load();
  }, { kind: "danger" });
  const more = button("Show more", () => { limit += PAGE; void load(); });
  const element = h("div.stack", {}, failed, h("section.panel", { "aria-label": "Delayed messages" }, h("header", {}, h("h2", {}, "Delayed messages"), sum, all), table.element), more);
  show(more, false);
  const load = () => asked(failed, signal, async () => {
    const found = await get("/api/delayed", { topic, limit }, signal);
    table.update(found.messages);
    setText(sum, found.count ? `${count(found.count).text}, ${bytes(found.bytes).text}${found.lost ? `; ${count(found.lost).text} lost to damage` : ""}` : "");
    show(all, found.count > 0);
    show(more, found.count > found.messages.length);
  });
  void every(MS, load, signal);
  return {
    element, update: () => permit(all, may(model.topic(topic), "a"), "admin on this topic"), tick: () => table.refresh(), close: () => table.close(),
  };
}

function columns(model, topic, cancel) {
  return [
    { key: "due", title: "Due", width: "190px", value: (one) => one.due_ms, show: (cell, one) => figureCell(cell, { text: moment(one.due_ms).text, exact: moment(one.due_ms).exact }, 1) },
    { key: "in", title: "", width: "110px", rank: 2, show: (cell, one) => figureCell(cell, relative(one.due_ms, model.now()), 1) },
    { key: "body", title: "Body", show: (cell, one) => { setText(cell, oneLine(one.body)); cell.classList.add("mono"); } },
    { key: "size", title: "Size", num: true, width: "90px", rank: 2, value: (one) => one.size, show: (cell, one) => figureCell(cell, bytes(one.size), one.size) },
    { key: "tag", title: "Tag", width: "110px", rank: 3, show: (cell, one) => setText(cell, one.tag ?? "") },
    {
      key: "act", title: "", width: "92px", num: true,
      make: (cell, one) => {
        cell.act = button("Cancel", () => void cancel(one), { kind: "small" });
        cell.append(cell.act);
      },
      show: (cell) => permit(cell.act, may(model.topic(topic), "a"), "admin on this topic"),
    },
  ];
}
