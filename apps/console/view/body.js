// Views of a message's bytes: as text, as coloured JSON, or as hex. A body may be hostile, so it is
// only ever set as text.

import { getBlob } from "../base/api.js";
import { add, h, put, setAttr, show } from "../base/dom.js";
import { bytes as size } from "../base/format.js";
import { button, segment } from "./parts.js";
import { attempt } from "./toast.js";

const JSON_MAX = 200_000; // longer JSON is not parsed and not coloured
const LINE_MAX = 160;
const HEX_ROWS_MAX = 4096;
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;

export function raw(bytes) {
  return Uint8Array.from(atob(bytes.base64 ?? ""), (one) => one.charCodeAt(0));
}

/** Return the beginning of the bytes without line breaks, for a cell of a table. */
export function oneLine(bytes) {
  if (!bytes) return "";
  if (bytes.size === 0) return "(empty)";
  if (typeof bytes.text === "string") return bytes.text.slice(0, LINE_MAX).replace(/\s+/g, " ");
  return [...raw({ base64: (bytes.base64 ?? "").slice(0, 64) })].map((one) => one.toString(16).padStart(2, "0")).join(" ");
}

/** Return a complete key or header value as text. */
export function shortText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return typeof value.text === "string" ? value.text : oneLine(value);
  return String(value);
}

/** Return the bytes as a hex dump, with the offset, hex digits and characters of 16 bytes a row.
 * Pure. */
export function hex(data) {
  const rows = [];
  for (let at = 0; at < data.length && rows.length < HEX_ROWS_MAX; at += 16) {
    const part = [...data.subarray(at, at + 16)];
    const numbers = part.map((one) => one.toString(16).padStart(2, "0"));
    const left = numbers.slice(0, 8).join(" ").padEnd(23);
    const right = numbers.slice(8).join(" ").padEnd(23);
    const letters = part.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : "·")).join("");
    rows.push(`${at.toString(16).padStart(6, "0")}  ${left}  ${right}  ${letters}`);
  }
  return rows.join("\n");
}

function parsed(text) {
  if (typeof text !== "string" || text.length > JSON_MAX || !/^\s*[[{"\d-]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Return JSON text as nodes. Keys, strings, numbers and literals (true) have different colours. */
function coloured(text) {
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(TOKEN)) {
    nodes.push(text.slice(at, found.index));
    const [all, quoted, colon, number] = found;
    if (quoted) nodes.push(h(`span.${colon ? "j-key" : "j-text"}`, {}, quoted), colon ?? "");
    else nodes.push(h(`span.${number ? "j-number" : "j-word"}`, {}, all));
    at = found.index + all.length;
  }
  nodes.push(text.slice(at));
  return nodes;
}

/** Return the view of a body, with a switch between text, JSON and hex. `path` and `query` address
 * the whole body, for the download. */
export function bodyView(bytes, { path, query, name }) {
  const value = bytes.cut ? undefined : parsed(bytes.text);
  const isText = typeof bytes.text === "string";
  const place = h("pre.body-view", { tabindex: "0", "aria-label": "Body" });
  const kinds = [value !== undefined && ["json", "JSON"], ["text", "Text"], ["hex", "Hex"]].filter(Boolean);
  const first = value !== undefined ? "json" : isText ? "text" : "hex";
  const draw = (kind) => {
    place.classList.toggle("hex", kind === "hex");
    if (kind === "json") put(place, coloured(JSON.stringify(value, null, 2)));
    else if (kind === "hex") put(place, hex(raw(bytes)));
    else put(place, isText ? bytes.text : new TextDecoder().decode(raw(bytes)));
    if (bytes.size === 0) put(place, h("span.faint", {}, "(an empty body)"));
  };
  const save = button("Download", () => void attempt("Downloaded.", () => download(path, query, name)), { kind: "small" });
  const cut = h("p.faint.small", {}, `The first ${size(raw(bytes).length).text} of ${size(bytes.size).text}; download it to see the rest.`);
  show(cut, Boolean(bytes.cut));
  draw(first);
  return add(h("div.stack"), h("div.toolbar", {}, segment("Show as", kinds, first, draw), h("span.faint", { title: size(bytes.size).exact }, size(bytes.size).text), h("div.end", {}, save)), place, cut);
}

async function download(path, query, name) {
  const address = URL.createObjectURL(await getBlob(path, query));
  const anchor = h("a", { href: address, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Return the view of a message: its body, offset, id, time, key, tag and headers. */
export function messageView(message, topic, moment) {
  const facts = h("dl.facts");
  const fact = (name, ...value) => add(facts, h("dt", {}, name), h("dd", {}, value));
  const headers = Object.entries(message.headers ?? {});
  fact("Offset", String(message.offset));
  fact("Id", h("code", {}, message.id));
  fact("Stored", h("span", { title: `${moment.exact} (${message.time_ns} ns since 1970)` }, moment.text));
  if (message.key) fact("Key", h("code", {}, shortText(message.key)));
  if (message.tag) fact("Tag", h("code", {}, message.tag));
  for (const [name, value] of headers) fact(h("code", {}, name), h("span.mono", {}, shortText(value)));
  const element = h("article.message", { "aria-label": `Message ${message.offset}` },
    h("header", {}, h("h2", {}, `Message ${message.offset}`)),
    bodyView(message.body, { path: "/api/body", query: { topic, offset: message.offset }, name: `${topic}-${message.offset}` }), facts);
  setAttr(element, "data-offset", message.offset);
  return element;
}
