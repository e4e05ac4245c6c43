// Views of a message's bytes: as text, as hex, or decoded as coloured JSON. A body may be hostile, so
// it is only ever set as text, and its decoders have limits. They run in the browser: there a body
// can only harm the page of the person who looks at it, and not the broker.

import { get, getBlob } from "../base/api.js";
import { add, h, put, setAttr, setText, show } from "../base/dom.js";
import { bytes as size, moment } from "../base/format.js";
import { decodeAvro, isFile } from "../decode/avro.js";
import { decodeJson } from "../decode/json.js";
import { decodeMsgpack, isContainer } from "../decode/msgpack.js";
import { Undecodable } from "../decode/writer.js";
import { button, segment } from "./parts.js";
import { keptSchema, schemaForm } from "./schema.js";
import { attempt } from "./toast.js";

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

const KINDS = [["auto", "Auto"], ["json", "JSON"], ["msgpack", "MessagePack"], ["avro", "Avro"], ["text", "Text"], ["hex", "Hex"]];
const WHOLE_MAX = 1024 * 1024; // the most bytes of a body that the broker shows
const MORE = "Show more of it";
const COLOURED_MAX = 200_000; // a longer text is not coloured
const chosen = new Map(); // topic -> the kind that the user chose, until the page is loaded again

/** Return the kind in which a body is shown if the user chooses none, with its decoded text. */
function automatic(bytes, data, topic) {
  const schema = keptSchema(topic);
  const tries = [
    (schema !== null || isFile(data)) && ["avro", () => decodeAvro(data, schema)],
    /^\s*[[{"\d-]/.test(bytes.text ?? "") && ["json", () => decodeJson(data)],
    bytes.text === undefined && isContainer(data[0]) && ["msgpack", () => decodeMsgpack(data)],
  ];
  for (const [kind, decode] of bytes.cut ? [] : tries.filter(Boolean)) {
    try {
      return { kind, found: decode() };
    } catch (error) {
      if (!(error instanceof Undecodable)) throw error;
    }
  }
  return { kind: typeof bytes.text === "string" ? "text" : "hex" };
}

/** Return what to show of a body: {kind, text, note}. Without a decoder that fits it is hex. */
export function bodyText(bytes, wanted, topic) {
  const data = raw(bytes);
  let kind = wanted;
  let found;
  try {
    if (wanted === "auto") ({ kind, found } = automatic(bytes, data, topic));
    if (kind === "json") found ??= decodeJson(data);
    else if (kind === "msgpack") found ??= decodeMsgpack(data);
    else if (kind === "avro") found ??= decodeAvro(data, keptSchema(topic));
  } catch (error) {
    if (!(error instanceof Undecodable)) throw error;
    return { kind: "hex", text: hex(data), note: bytes.cut ? partly(bytes, data, kind, error) : error.message };
  }
  if (found) return { kind, ...found };
  if (kind === "hex") return { kind, text: hex(data), note: "" };
  return { kind, text: bytes.text ?? new TextDecoder().decode(data), note: "" };
}

/** Return why a body of which only a part is loaded is not shown in its form. */
function partly(bytes, data, kind, error) {
  const rest = data.length >= WHOLE_MAX ? "Download it to see the rest." : `“${MORE}” loads ${bytes.size > WHOLE_MAX ? "more" : "the rest"}.`;
  // What the decoder of JSON says of a part is not true of the whole: it may be JSON.
  return `${kind === "json" ? "" : `${error.message} `}Only the first ${size(data.length).text} of ${size(bytes.size).text} are loaded. ${rest}`;
}

/** Return the view of a body, with a switch between its forms. `path` and `query` address the whole
 * body, for the download. */
export function bodyView(bytes, { path, query, name }) {
  const { topic } = query;
  const place = h("pre.body-view", { tabindex: "0", "aria-label": "Body" });
  const note = h("p.note", { hidden: true, role: "status" });
  const cut = h("p.faint.small");
  const avro = schemaForm(topic, () => draw("avro"));
  let now = bytes;
  const draw = (wanted) => {
    chosen.set(topic, wanted);
    const shown = bodyText(now, wanted, topic);
    const isValue = ["json", "msgpack", "avro"].includes(shown.kind);
    place.classList.toggle("hex", shown.kind === "hex");
    setAttr(place, "data-kind", shown.kind);
    put(place, isValue && shown.text.length <= COLOURED_MAX ? coloured(shown.text) : shown.text);
    if (now.size === 0) put(place, h("span.faint", {}, "(an empty body)"));
    setText(note, shown.note);
    show(note, Boolean(shown.note));
    show(avro, wanted === "avro");
    setText(cut, `The first ${size(raw(now).length).text} of ${size(now.size).text}; download it to see the rest.`);
    show(cut, Boolean(now.cut));
    show(all, Boolean(now.cut) && raw(now).length < WHOLE_MAX);
  };
  const save = button("Download", () => void attempt("Downloaded.", async () => saveBlob(await getBlob(path, query), name)), { kind: "small" });
  const all = button(MORE, () => void attempt("Loaded.", async () => {
    const found = await get("/api/messages", { ...query, count: 1, body_max: WHOLE_MAX });
    now = found.messages[0]?.offset === query.offset ? found.messages[0].body : now;
    draw(chosen.get(topic) ?? "auto");
  }), { kind: "small" });
  const first = chosen.get(topic) ?? "auto";
  const element = add(h("div.stack"), h("div.toolbar", {}, segment("Show as", KINDS, first, draw), h("span.faint", { title: size(bytes.size).exact }, size(bytes.size).text), h("div.end", {}, all, save)), avro, note, place, cut);
  draw(first);
  return element;
}

/** Save a blob as a file. */
export function saveBlob(blob, name) {
  const address = URL.createObjectURL(blob);
  const anchor = h("a", { href: address, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const DEAD_ERROR = "zsq-dead-error";
const DEAD_TIME = "zsq-dead-time";

/** Return a time in ns since 1970. Any publisher may have written the header, so it may be no time. */
function stamp(value) {
  if (!/^\d{1,19}$/.test(String(value))) return h("span.mono", {}, shortText(value));
  const { text, exact } = moment(Math.floor(Number(value) / 1e6));
  return h("span", { title: `${exact} (${value} ns since 1970)` }, text);
}

/** Return the view of a message: its body, offset, id, time, key, tag and headers. The error of a
 * dead letter is above its body. `actions` are buttons. */
export function messageView(message, topic, actions = []) {
  const facts = h("dl.facts");
  const stored = moment(message.time_ms);
  const fact = (name, ...value) => add(facts, h("dt", {}, name), h("dd", {}, value));
  const headers = Object.entries(message.headers ?? {});
  fact("Offset", String(message.offset));
  fact("Id", h("code", {}, message.id));
  fact("Stored", h("span", { title: `${stored.exact} (${message.time_ns} ns since 1970)` }, stored.text));
  if (message.key) fact("Key", h("code", {}, shortText(message.key)));
  if (message.tag) fact("Tag", h("code", {}, message.tag));
  if (message.only_channel) fact("Only for channel", h("code", {}, message.only_channel));
  for (const [name, value] of headers) fact(h("code", {}, name), name === DEAD_TIME ? stamp(value) : h("span.mono", {}, shortText(value)));
  const error = message.headers?.[DEAD_ERROR];
  const element = h("article.message", { "aria-label": `Message ${message.offset}` },
    h("header", {}, h("h2", {}, `Message ${message.offset}`), h("div.end", {}, actions)),
    error && h("p.note.alarm.mono.trace", { "aria-label": "Error", tabindex: "0" }, shortText(error)),
    bodyView(message.body, { path: "/api/body", query: { topic, offset: message.offset }, name: `${topic}-${message.offset}` }), facts);
  setAttr(element, "data-offset", message.offset);
  return element;
}
