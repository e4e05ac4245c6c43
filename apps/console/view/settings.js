// Settings of a channel or topic as facts and as fields of a dialog, made from the broker's table
// of settings.

import { Wrong } from "../base/api.js";
import { h } from "../base/dom.js";
import { bytes, count, duration, parseBytes, parseDuration, parseRate, rateLimit } from "../base/format.js";
import { checkbox, field } from "./dialog.js";

const whole = (text) => (/^\d+$/.test(text) ? Number(text) : null);
const PARSE = { count: whole, seconds: parseDuration, bytes: parseBytes, rate: parseRate };
const FORMAT = { count, seconds: duration, bytes, rate: rateLimit };

/** Return the meaning of a setting's value as text for users. */
function shown(row, value) {
  if (value === null || value === undefined) return "as set for the broker";
  if (row.kind === "flag") return value ? `yes: ${row.hint}` : row.none_label;
  if (value === "" || value === row.no_bound) return row.none_label;
  return row.choices[value] ?? FORMAT[row.kind]?.(value).text ?? value;
}

/** Return settings as pairs for a list of facts. */
export const shownSettings = (rows, now) => rows.map((row) => [row.label, shown(row, now?.[row.name])]);

/** Return the rows of a channel's settings, with its names in the texts about defaults. */
export function settingsOf(topic, channel, rows) {
  const named = (text) => text?.replace("TOPIC.CHANNEL", `${topic}.${channel}`);
  return rows.map((row) => ({ ...row, none_label: named(row.none_label), hint: named(row.hint) }));
}

/** Return a value as a text that is parsed to the same value. */
function editable(row, value) {
  if (value === null || value === undefined) return "";
  if (value === -1) return "none";
  if (row.kind === "count" || !PARSE[row.kind]) return String(value);
  const text = FORMAT[row.kind](value).text.replace(/[\u2009]/g, "");
  return PARSE[row.kind](text) === value ? text : String(value);
}

function parsed(row, text) {
  if (text === "") return null;
  if (row.no_bound === -1 && (text === "none" || text === "never")) return -1;
  if (row.kind === "rate" && text === "none") return 0;
  const value = PARSE[row.kind] ? PARSE[row.kind](text) : text;
  if (value === null) throw new Wrong(`“${text}” is not a valid value for “${row.label}”.`);
  return value;
}

/** Return the field of a setting, and functions that read it. `was` is its value before the user
 * changes it. */
function input(row, value, empty) {
  if (row.kind === "flag") {
    const element = checkbox(`${row.label}: ${row.hint}`, value === true);
    return { row, element, was: value === true, read: () => element.input.checked, sent: (checked) => checked };
  }
  if (row.kind === "choice") {
    const list = h("select", { name: row.name }, Object.entries(row.choices).map(([one, text]) => h("option", { value: one, selected: one === value }, text)));
    return { row, element: field(row.label, list, row.hint), was: list.value, read: () => list.value, sent: (text) => text };
  }
  const line = h("input", { name: row.name, autocomplete: "off", spellcheck: "false", placeholder: empty ?? shown(row, row.default) });
  line.value = editable(row, value);
  return { row, element: field(row.label, line, row.hint), was: line.value, read: () => line.value.trim(), sent: (text) => parsed(row, text) };
}

/** Return the fields of settings: their elements, and `changes()` for the body of a request. In a
 * request, null resets a setting. `empty` is the placeholder of an empty field. */
export function settingsForm(rows, now, empty) {
  const inputs = rows.map((row) => input(row, now?.[row.name], empty));
  return {
    elements: inputs.map((one) => one.element),
    changes: () => Object.fromEntries(inputs.filter((one) => one.read() !== one.was).map((one) => [one.row.name, one.sent(one.read())])),
  };
}
