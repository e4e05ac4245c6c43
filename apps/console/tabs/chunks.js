// Map of a topic's log: its chunks in order. It shows how full each chunk is, why it is still kept,
// and whether it is being read or written.

import { every, get } from "../base/api.js";
import { h, setAttr, setClass, setText, show } from "../base/dom.js";
import { bytes, count, moment, percent, plural, rate } from "../base/format.js";
import { asked, empty, figureCell } from "../view/parts.js";
import { Table } from "../view/table.js";

const MS = 2000;
const CHUNK_BYTES = 256 * 1024 * 1024; // the broker's default: the scale if the log has only one chunk

export function chunksTab({ topic, model, query, signal }) {
  const map = h("div.chunk-map", { role: "group", "aria-label": "Chunks, oldest first" });
  const cells = new Map();
  const key = h("div.map-key", {}, [["active", "written to now"], ["unfinished", "not finished by all channels"], ["kept", "finished and kept"], ["round.writes", "writes"], ["round.reads", "reads"], ["none", "▲ position of a channel"]].map(([kind, text]) => h("span", {}, h(`i.${kind}`, { "aria-hidden": "true" }), text)));
  const sum = h("span.quiet");
  const failed = h("p.note.warn", { hidden: true });
  const table = new Table({ label: `Chunks of ${topic}`, columns: columns(), id: (chunk) => String(chunk.first_offset), sort: ["first", -1], query, empty: empty("No chunk yet", "The first message creates one.") });
  const element = h("div.stack", {}, failed, h("section.panel", { "aria-label": "Map of the log" }, h("header", {}, h("h2", {}, "The log, oldest to newest"), sum), h("div.body", {}, map, key)),
    h("section.panel", { "aria-label": "Chunks" }, table.element));

  const draw = (found) => {
    const chunks = found.chunks ?? [];
    const cursors = Object.entries(found.cursors ?? {});
    // without a channel, all messages wait for the first channel
    const none = model.topic(topic)?.waiting ? 0 : Infinity;
    const first = Math.min(none, ...cursors.map(([, offset]) => offset));
    const whole = chunks.slice(0, -1).map((chunk) => chunk.bytes);
    const full = Math.max(...(whole.length ? whole : [CHUNK_BYTES]), ...chunks.map((chunk) => chunk.bytes));
    const last = chunks.at(-1);
    const there = new Set();
    for (const chunk of chunks) {
      chunk.kind = chunk.state === "active" || chunk === last ? "active" : chunk.first_offset + chunk.messages > first ? "waiting-for" : "kept";
      there.add(chunk.first_offset);
      let cell = cells.get(chunk.first_offset);
      if (!cell) {
        cell = makeCell(chunk.first_offset, table);
        cells.set(chunk.first_offset, cell);
        map.append(cell.place);
      }
      cell.fill.style.setProperty("height", `${Math.max(3, (chunk.bytes / full) * 100)}%`);
      for (const kind of ["active", "waiting-for", "kept"]) setClass(cell.element, kind, chunk.kind === kind);
      setClass(cell.element, "bad", Boolean(chunk.bad));
      setClass(cell.writes, "on", chunk.written_bytes_s > 0);
      setClass(cell.reads, "on", chunk.file_reads_s > 0 || chunk.ring_reads_s > 0);
      const told = `Offsets ${count(chunk.first_offset).exact} to ${count(chunk.first_offset + chunk.messages).exact}, ${bytes(chunk.bytes).text}, ${WORDS[chunk.kind]}${chunk.bad ? ", damaged" : ""}`;
      const here = cursors.filter(([, offset]) => at(offset, chunk, chunk === last)).map(([name]) => name);
      setText(cell.cursors, here.length ? `▲ ${here.join(", ")}` : "");
      setAttr(cell.cursors, "title", here.length ? `Channels at this chunk: ${here.join(", ")}` : null);
      setAttr(cell.element, "title", told);
      setAttr(cell.element, "aria-label", told);
    }
    for (const [offset, cell] of cells) {
      if (there.has(offset)) continue;
      cell.place.remove();
      cells.delete(offset);
    }
    table.update(chunks);
    const total = found.total ?? {};
    setText(sum, `${plural(total.chunks ?? chunks.length, "chunk")}, ${bytes(total.bytes ?? chunks.reduce((all, one) => all + one.bytes, 0)).text}`);
  };
  void every(MS, () => asked(failed, signal, async () => {
    draw(await get("/api/chunks", { topic }, signal));
  }), signal);
  return { element, close: () => table.close() };
}

/** Return true if a channel at `offset` continues in this chunk. */
function at(offset, chunk, last) {
  return offset >= chunk.first_offset && (last || offset < chunk.first_offset + chunk.messages);
}

const WORDS = { active: "written to now", "waiting-for": "not finished by all channels", kept: "finished and kept" };

function makeCell(offset, table) {
  const fill = h("i.fill");
  const writes = h("i.writes");
  const reads = h("i.reads");
  const element = h("button.chunk", { type: "button" }, fill, writes, reads);
  const cursors = h("div.cursors");
  element.addEventListener("click", () => {
    const row = table.rows.get(String(offset));
    for (const other of table.rows.values()) if (other.tr) setClass(other.tr, "chosen", other === row);
    row?.tr?.scrollIntoView({ block: "center", behavior: "smooth" });
  });
  return { place: h("div.chunk-place", {}, element, cursors), element, cursors, fill, writes, reads };
}

function columns() {
  const figure = (name, title, format, width, rank, hint) => ({ key: name, title, hint, num: true, width, rank, value: (chunk) => chunk[name], show: (cell, chunk) => figureCell(cell, format(chunk[name]), chunk[name]) });
  const reads = (chunk) => (chunk.file_reads_s ?? 0) + (chunk.ring_reads_s ?? 0);
  return [
    { key: "first", title: "First offset", width: "120px", value: (chunk) => chunk.first_offset, show: (cell, chunk) => figureCell(cell, { text: count(chunk.first_offset).exact, exact: "" }, 1) },
    { key: "state", title: "State", value: (chunk) => chunk.kind, show: (cell, chunk) => { setText(cell, WORDS[chunk.kind] + (chunk.bad ? `, damaged (${chunk.bad})` : "")); setClass(cell, "alarm", chunk.bad); } },
    figure("messages", "Messages", count, "96px"),
    figure("bytes", "Size", bytes, "96px"),
    { key: "from", title: "From", num: true, width: "150px", rank: 3, value: (chunk) => chunk.first_time_ms, show: (cell, chunk) => figureCell(cell, moment(chunk.first_time_ms || NaN), 1) },
    { key: "to", title: "To", num: true, width: "150px", rank: 2, value: (chunk) => chunk.last_time_ms, show: (cell, chunk) => figureCell(cell, moment(chunk.last_time_ms || NaN), 1) },
    figure("written_bytes_s", "Written/s", bytes, "100px", 2),
    { key: "reads", title: "Reads/s", hint: "from memory and from the file", num: true, width: "88px", rank: 2, value: reads, show: (cell, chunk) => figureCell(cell, rate(reads(chunk)), reads(chunk)) },
    { key: "hits", title: "From memory", hint: "share of all reads so far that the broker's memory answered", num: true, width: "118px", rank: 3, value: hits, show: (cell, chunk) => figureCell(cell, percent(hits(chunk)), hits(chunk)) },
  ];
}

function hits(chunk) {
  const all = (chunk.ring_reads ?? 0) + (chunk.file_reads ?? 0);
  return all ? chunk.ring_reads / all : null;
}
