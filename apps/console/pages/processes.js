// Page of the broker's processes: each actor with its pid, memory, restarts and state. Quiet topics
// share processes, whose memory has a row of its own.

import { every, get } from "../base/api.js";
import { h, setText, show } from "../base/dom.js";
import { bytes, count, duration, plural } from "../base/format.js";
import { facts } from "../tabs/keeping.js";
import { asked, empty, Figures, figureCell } from "../view/parts.js";
import { filterField, skeleton, Table } from "../view/table.js";

const FIGURES = [
  { key: "count", name: "Processes" }, { key: "memory", name: "Memory of their own", hint: "private memory of all of them together" },
  { key: "restarts", name: "Restarts", hint: "of processes that ended unexpectedly" }, { key: "uptime", name: "Up for" },
];

export function processesPage({ model, query, signal }) {
  const figures = new Figures(FIGURES);
  const failed = h("p.note.warn", { hidden: true });
  const waiting = skeleton(8);
  const number = h("span.quiet", { role: "status" });
  const bucket = bucketPanel();
  const table = new Table({ label: "Processes", columns: columns(), id: (one) => `${one.name} ${one.kind}`, words: (one) => `${one.name} ${one.kind} ${one.pid} ${one.state}`, sort: ["memory_bytes", -1], query, empty: empty("No processes to show", "") });
  show(table.element, false);
  const tell = () => setText(number, table.shown === table.size ? plural(table.size, "row", "rows") : `${table.shown} of ${plural(table.size, "row", "rows")}`);
  const element = h("div.stack", {}, h("div.toolbar", {}, h("h1", {}, "Processes"), filterField(() => table, "Filter processes", tell), number),
    failed, h("section.panel", { "aria-label": "All together" }, figures.element), bucket.element, h("section.panel", { "aria-label": "Processes" }, waiting, table.element));
  void every(4000, () => asked(failed, signal, async () => {
    const found = await get("/api/processes", {}, signal);
    show(table.element, true);
    table.update(found.processes);
    bucket.update(found.bucket);
    tell();
    const restarts = found.processes.reduce((sum, one) => sum + (one.restarts ?? 0), 0);
    figures.set("count", count(new Set(found.processes.map((one) => one.pid)).size));
    figures.set("memory", bytes(found.memory_bytes));
    figures.set("restarts", count(restarts), { state: restarts ? "warn" : "" });
  }, waiting), signal);
  const tick = () => model.broker.start_ms && figures.set("uptime", duration(Math.round((model.now() - model.broker.start_ms) / 1000)), { under: [model.broker.version && `zsq ${model.broker.version}`, `node ${model.broker.node ?? 0}`].filter(Boolean).join(", ") });
  return { element, title: "Processes", up: "#/", follow: {}, update: tick, tick, close: () => table.close(), stays: () => true };
}

/** The requests to the bucket, and how far it is behind. */
function bucketPanel() {
  const list = h("dl.facts");
  const element = h("section.panel", { "aria-label": "Bucket", hidden: true }, h("header", {}, h("h2", {}, "Bucket")), h("div.body", {}, list));
  return {
    element,
    update(row) {
      show(element, Boolean(row));
      if (!row) return;
      facts(list, [
        ["URL", h("code", {}, row.url)],
        ...(row.trouble ? [["Trouble", row.trouble]] : []),
        ...(row.shipping === "off" ? [] : [["Shipping", `${row.shipping}, ${row.lag_s ? `${duration(row.lag_s).text} behind` : "nothing is missing"}`]]),
        ["Requests", `${count(row.write_requests).exact} that write (${bytes(row.sent_bytes).text}), ${count(row.read_requests).exact} that read (${bytes(row.received_bytes).text})`],
        ...(row.cost ? [["Cost", row.cost.toFixed(4)]] : []),
      ]);
    },
  };
}

function columns() {
  return [
    { key: "name", title: "Actor", value: (one) => one.name, show: (cell, one) => { setText(cell, one.name); cell.title = one.name; cell.classList.add("mono"); } },
    { key: "kind", title: "Kind", width: "120px", rank: 2, value: (one) => one.kind, show: (cell, one) => setText(cell, one.host ? `${one.kind}, shared` : one.kind) },
    { key: "pid", title: "Pid", num: true, width: "84px", value: (one) => one.pid, show: (cell, one) => setText(cell, one.pid) },
    { key: "state", title: "State", width: "110px", value: (one) => one.state, show: (cell, one) => figureCell(cell, one.state, 1, one.state === "up" ? "" : "warn") },
    { key: "restarts", title: "Restarts", num: true, width: "88px", rank: 2, value: (one) => one.restarts, show: (cell, one) => figureCell(cell, count(one.restarts), one.restarts, one.restarts ? "warn" : "") },
    { key: "uptime_s", title: "Up", num: true, width: "112px", rank: 2, value: (one) => one.uptime_s, show: (cell, one) => figureCell(cell, duration(one.uptime_s === null ? null : Math.round(one.uptime_s)), one.uptime_s) },
    { key: "memory_bytes", title: "Memory", num: true, width: "112px", value: (one) => one.memory_bytes, show: (cell, one) => figureCell(cell, bytes(one.memory_bytes), one.memory_bytes) },
  ];
}
