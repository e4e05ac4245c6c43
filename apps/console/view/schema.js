// Avro schema of a topic, which the user gives: pasted, or from a file.
//
// The schema stays in this browser (localStorage), for each topic. The broker does not keep it: to
// the broker a body is bytes, a schema would need a permission, a place on disk and a protocol, and
// whoever has many schemas has a registry for them. So each person gives the schema once.

import { h, put, setText, show } from "../base/dom.js";
import { BadSchema, parseSchema } from "../decode/avro.js";
import { button } from "./parts.js";

const KEY = "zsq.avro.";
const held = new Map(); // topic -> {text, schema}, also if the browser stores nothing
const FILE_MAX = 1024 * 1024;

/** Return the schema of a topic for `decodeAvro`, or null. */
export function keptSchema(topic) {
  if (!held.has(topic)) held.set(topic, read(topic));
  return held.get(topic).schema;
}

function read(topic) {
  try {
    const text = localStorage.getItem(KEY + topic) ?? "";
    return { text, schema: text ? parseSchema(text) : null };
  } catch {
    return { text: "", schema: null }; // the browser stores nothing, or something else wrote there
  }
}

function keep(topic, text) {
  const schema = text.trim() ? parseSchema(text) : null;
  held.set(topic, { text, schema });
  try {
    if (schema === null) localStorage.removeItem(KEY + topic);
    else localStorage.setItem(KEY + topic, text);
  } catch {
    // the schema is kept as long as this page
  }
}

/** Return the form for the schema of a topic. `changed()` is called when there is another one. */
export function schemaForm(topic, changed) {
  const known = keptSchema(topic) !== null;
  const text = h("textarea", { rows: "5", spellcheck: "false", "aria-label": "Avro schema", placeholder: '{"type": "record", "name": …}' });
  text.value = held.get(topic).text;
  const wrong = h("p.note.alarm", { hidden: true, role: "alert" });
  const file = h("input", { type: "file", accept: ".avsc,.json,application/json", "aria-label": "File with an Avro schema" });
  const summary = h("summary", {}, "");
  const place = h("details.schema", { open: !known }, summary);
  const say = (error) => {
    setText(wrong, error ?? "");
    show(wrong, Boolean(error));
    setText(summary, keptSchema(topic) === null ? "Avro schema: none" : "Avro schema: kept in this browser");
  };
  const use = (value) => {
    try {
      keep(topic, value);
    } catch (error) {
      if (!(error instanceof BadSchema)) throw error;
      return say(error.message);
    }
    say(null);
    place.open = keptSchema(topic) === null;
    return changed();
  };
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    file.value = "";
    if (!chosen) return;
    if (chosen.size > FILE_MAX) return say("This file is too large for a schema.");
    text.value = await chosen.text();
    return use(text.value);
  });
  place.append(h("div.stack", {}, text, wrong, h("div.toolbar", {}, button("Use this schema", () => use(text.value), { kind: "small" }), button("Forget it", () => { text.value = ""; use(""); }, { kind: "small" }), file)));
  say(null);
  return put(h("div"), place);
}
