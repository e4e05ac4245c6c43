// Dialog that publishes to a topic: body as text, base64 or hex, with key, tag, headers and delay.

import { post, Wrong } from "../base/api.js";
import { h, show } from "../base/dom.js";
import { parseDuration } from "../base/format.js";
import { link } from "../base/router.js";
import { checkbox, choices, dialog, field } from "./dialog.js";
import { tell } from "./toast.js";

const HEADER = /^\s*([^:\s][^:]*?)\s*:\s?(.*)$/;
const FORMS = [["text", "Text"], ["base64", "Base64"], ["hex", "Hex"]];
const STEP = 8192; // String.fromCharCode takes a limited number of arguments

/** Parse lines of "name: value" into an object of texts. */
function parseHeaders(text) {
  const found = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const [, name, value] = HEADER.exec(line) ?? [];
    if (name === undefined) throw new Wrong(`“${line.slice(0, 60)}” is not a header. Write “name: value”, one header per line.`);
    if (Object.hasOwn(found, name)) throw new Wrong(`The header “${name}” is given twice.`);
    // this also works for the name __proto__
    Object.defineProperty(found, name, { value, enumerable: true });
  }
  return found;
}

/** Return the base64 of hex digits. Spaces, line ends and a leading 0x are ignored. Throws Wrong.
 * Pure. */
export function hexToBase64(text) {
  const digits = text.replace(/\s+/g, "").replace(/^0x/i, "");
  if (!/^(?:[0-9a-f]{2})*$/i.test(digits)) throw new Wrong("The body is not hex. Write two digits of 0-9 and a-f for each byte, such as 00 ff 1a.");
  const bytes = Uint8Array.from(digits.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
  let letters = "";
  for (let at = 0; at < bytes.length; at += STEP) letters += String.fromCharCode(...bytes.subarray(at, at + STEP));
  return btoa(letters);
}

/** Return base64 without spaces and line ends. Throws Wrong. Pure. */
export function checkedBase64(text) {
  const found = text.replace(/\s+/g, "");
  try {
    atob(found);
  } catch {
    throw new Wrong("The body is not base64. It has letters, digits, + and /, and = only at its end.");
  }
  return found.padEnd(Math.ceil(found.length / 4) * 4, "=");
}

/** Return the part of the request that has the body or bodies. */
function bodies(form, text, perLine) {
  if (form === "hex") return { body_base64: hexToBase64(text) };
  if (form === "base64") return { body_base64: checkedBase64(text) };
  if (!perLine) return { body: text };
  const found = text.split("\n").filter(Boolean);
  if (!found.length) throw new Wrong("There is no line to publish. Enter a message.");
  return { bodies: found };
}

/** Return a header or key as the text of a field, or null if it does not fit into one line. */
function line(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return typeof value.text === "string" && !/[\r\n]/.test(value.text) ? value.text : null;
  return /[\r\n]/.test(String(value)) ? null : String(value);
}

/** Return the part of the request that has headers and their types: those of the fields, and those
 * of the draft that do not fit into a field. Unchanged values keep their types. */
function typedHeaders(named, before) {
  const [headers, encoded] = [{ ...named }, {}];
  for (const [name, value] of Object.entries(before)) {
    const text = line(value);
    if (text !== null && named[name] !== text) continue; // changed or removed
    if (typeof value !== "object" || value === null) headers[name] = value;
    else {
      delete headers[name];
      encoded[name] = value.base64;
    }
  }
  return { ...(Object.keys(headers).length ? { headers } : {}), ...(Object.keys(encoded).length ? { headers_base64: encoded } : {}) };
}

/** Publish to a topic. `draft` is a message to send again: {body, key, tag, headers, note}. */
export async function publish(topic, draft = null) {
  const body = h("textarea", { name: "body", rows: "6", spellcheck: "false", "aria-label": "Body" });
  const lines = checkbox("One message per line (empty lines are skipped)");
  const oldForm = draft && draft.body.text === undefined ? "base64" : "text";
  const form = choices("Form of the body", FORMS, oldForm, (chosen) => show(lines, chosen === "text"));
  const key = h("input", { name: "key", autocomplete: "off", spellcheck: "false", placeholder: "none" });
  const tag = h("input", { name: "tag", autocomplete: "off", spellcheck: "false", placeholder: "none" });
  const headers = h("textarea", { name: "headers", rows: "2", spellcheck: "false", placeholder: "none", "aria-label": "Headers" });
  if (draft) {
    [body.value, tag.value] = [draft.body.text ?? draft.body.base64, draft.tag ?? ""];
    [key.value, key.disabled] = [line(draft.key) ?? "(binary, it stays)", line(draft.key) === null];
    const lines = Object.entries(draft.headers).filter(([, value]) => line(value) !== null);
    headers.value = lines.map(([name, value]) => `${name}: ${line(value)}`).join("\n");
    headers.rows = Math.min(8, Math.max(2, lines.length));
  }
  const [oldBody, oldKey] = [body.value, key.value];
  const kept = draft ? Object.entries(draft.headers).filter(([, value]) => line(value) === null).map(([name]) => name) : [];
  const delay = h("input", { name: "delay", autocomplete: "off", placeholder: "none" });
  const done = await dialog({
    title: draft ? `Send again to ${topic}` : `Publish to ${topic}`, submit: draft ? "Send" : "Publish", wide: true,
    fields: [
      draft && h("p.quiet", {}, draft.note, kept.length ? ` These headers stay as they are: ${kept.join(", ")}.` : ""),
      field("Body", body), form, !draft && lines,
      h("div.pair", {}, field("Key", key, "an ordered channel keeps messages of one key in order"), field("Tag", tag, "a channel with tags receives only messages with these tags")),
      field("Headers", headers, "name: value, one header per line"), field("Delay", delay, "such as 30s, 10m or 7d; at most 366d"),
    ],
    act: () => {
      const wait = delay.value.trim() ? parseDuration(delay.value) : 0;
      if (wait === null) throw new Wrong("Enter a delay: a number with s, m, h or d, such as 30s.");
      const named = parseHeaders(headers.value);
      return post("/api/topic/publish", { topic }, {
        ...(draft && body.value === oldBody && form.value === oldForm ? { body_base64: draft.body.base64 } : bodies(form.value, body.value, !draft && lines.input.checked)),
        ...(draft?.key && key.value === oldKey ? { key_base64: draft.key.base64 } : key.value ? { key: key.value } : {}),
        ...(tag.value ? { tag: tag.value } : {}),
        ...typedHeaders(named, draft?.headers ?? {}),
        ...(wait ? { delay_s: wait } : {}),
      });
    },
  });
  if (done) tell(sentence(topic, done));
}

/** Return a sentence about the result of a publish, with a link to the first message. */
function sentence(topic, { count: sent, offset, part, id, keys }) {
  const them = sent === 1 ? "Published" : `Published ${sent} messages`;
  const on = sent === 1 ? "it is on disk" : "they are on disk";
  if (keys.length) return `${them}: ${on}, and delayed.`;
  if (offset === null) return `${them}: ${on}.`;
  const at = `${them}: ${on}, ${sent === 1 ? "at" : "from"} offset ${offset}${sent === 1 ? "" : " on"}.`;
  const place = part === null || topic.includes("#") ? topic : `${topic}#${part}`;
  return [at, " ", h("a.linked", { href: link("topics", place, "messages", { offset }) }, h("span", {}, `Message ${id}`))];
}
