// Page of the audit log: the broker's log of changes, newest first.

import { every, get } from "../base/api.js";
import { h, setText, show } from "../base/dom.js";
import { moment } from "../base/format.js";
import { asked, empty, figureCell } from "../view/parts.js";
import { filterField, skeleton, Table } from "../view/table.js";

export function auditPage({ query, signal }) {
  const failed = h("p.note.warn", { hidden: true });
  const waiting = skeleton(6);
  const table = new Table({
    label: "Admin actions", columns: columns(), id: (one) => one.key, words: (one) => JSON.stringify(one), sort: ["time", -1], query,
    empty: empty("No changes yet", "This log shows who created, configured, paused, emptied, moved or deleted topics and channels."),
  });
  show(table.element, false);
  void every(5000, () => asked(failed, signal, async () => {
    const found = await get("/api/audit", { count: 200 }, signal);
    const entries = (found.entries ?? []).map((one) => ({ ...one, ms: milliseconds(one) }));
    entries.forEach((one) => { one.key = JSON.stringify(one); });
    show(table.element, true);
    table.update(entries);
  }, waiting), signal);
  return {
    element: h("div.stack", {}, h("div.toolbar", {}, h("h1", {}, "Audit log"), filterField(() => table, "Filter")), failed, h("section.panel", { "aria-label": "Admin actions" }, waiting, table.element)),
    title: "Audit log", up: "#/", follow: {}, close: () => table.close(), stays: () => true,
  };
}

function milliseconds({ time, time_ms: ms }) {
  if (typeof ms === "number") return ms;
  return typeof time === "number" ? (time > 1e14 ? time / 1e6 : time > 1e11 ? time : time * 1000) : Date.parse(time);
}

function columns() {
  const text = (key, title, width, rank) => ({ key, title, width, rank, value: (one) => String(one[key] ?? ""), show: (cell, one) => { setText(cell, one[key] ?? ""); cell.title = String(one[key] ?? ""); } });
  return [
    { key: "time", title: "When", width: "160px", value: (one) => one.ms, show: (cell, one) => figureCell(cell, moment(one.ms), 1) },
    text("user", "Who", "120px"), text("action", "Did", "130px"),
    { key: "on", title: "On", value: (one) => `${one.topic ?? ""}/${one.channel ?? ""}`, show: (cell, one) => setText(cell, [one.topic, one.channel].filter(Boolean).join(" / ")) },
    { key: "options", title: "How", rank: 3, show: (cell, one) => { const said = one.options && Object.keys(one.options).length ? JSON.stringify(one.options) : ""; setText(cell, said); cell.title = said; cell.classList.add("mono"); } },
    text("from", "From", "170px", 3), text("via", "By", "80px", 3), text("result", "Result", "110px", 2),
  ];
}
