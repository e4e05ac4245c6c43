// Tab of the producers that are connected to a topic.

import { every, get } from "../base/api.js";
import { h, setText, show } from "../base/dom.js";
import { bytes, count, duration } from "../base/format.js";
import { asked, empty, figureCell } from "../view/parts.js";
import { Table } from "../view/table.js";

const KINDS = { zmq: "ZSQ", nsq: "NSQ", http: "HTTP" };

export function producersTab({ topic, query, signal }) {
  const table = new Table({
    label: `Producers of ${topic}`, id: (one) => `${one.kind} ${one.name} ${one.address}`, sort: ["name", 1], query,
    empty: empty("No producer is connected", "Producers are listed while they are connected. An HTTP client is connected only during its request.", `echo 'hello' | zsq pub ${topic}`),
    columns: [
      { key: "name", title: "Producer", value: (one) => one.name, show: (cell, one) => setText(cell, one.name || "(no name)") },
      { key: "address", title: "Address", value: (one) => one.address, rank: 2, show: (cell, one) => setText(cell, one.address) },
      { key: "kind", title: "Protocol", width: "100px", value: (one) => one.kind, show: (cell, one) => setText(cell, KINDS[one.kind] ?? one.kind) },
      { key: "via", title: "By", rank: 3, value: (one) => one.via, show: (cell, one) => setText(cell, one.via ?? "") },
      { key: "silent", title: "Silent for", hint: "time since it last sent something", num: true, width: "104px", rank: 2, value: (one) => one.silent_ms, show: (cell, one) => figureCell(cell, duration(typeof one.silent_ms === "number" ? one.silent_ms / 1000 : null), one.silent_ms) },
      { key: "unanswered", title: "Unanswered", hint: "bytes of blocks that are not durable yet", num: true, width: "112px", rank: 3, value: (one) => one.unanswered_bytes, show: (cell, one) => figureCell(cell, bytes(one.unanswered_bytes), one.unanswered_bytes) },
      { key: "count", title: "Published", hint: "messages, or blocks if messages are not counted", num: true, width: "140px", value: (one) => one.count ?? one.blocks, show: (cell, one) => published(cell, one) },
    ],
  });
  const failed = h("p.note.warn", { hidden: true });
  const element = h("div.stack", {}, failed, h("section.panel", { "aria-label": "Producers" }, table.element));
  void every(3000, () => asked(failed, signal, async () => {
    table.update((await get("/api/topic", { topic }, signal)).producers ?? []);
  }), signal);
  return { element, close: () => table.close() };
}

function published(cell, { count: messages, blocks }) {
  if (typeof messages === "number" || typeof blocks !== "number") figureCell(cell, count(messages), messages);
  else figureCell(cell, { text: `${count(blocks).text} blocks`, exact: `${count(blocks).exact} blocks` }, blocks);
}
