// Actions on a topic, each with its dialog: create, publish, pause, empty, configure, delete.

import { post, Wrong } from "../base/api.js";
import { h } from "../base/dom.js";
import { parseDuration } from "../base/format.js";
import { go, link } from "../base/router.js";
import { SYNC_MODES, TOPIC } from "../base/settings.js";
import { checkbox, choices, confirm, dialog, field } from "./dialog.js";
import { settingsForm } from "./settings.js";
import { attempt, tell } from "./toast.js";

const NAME = "[A-Za-z0-9._\\-]{1,64}(#ephemeral)?";

export function nameInput(label) {
  return h("input", { name: label, required: true, pattern: NAME, maxlength: "74", autocomplete: "off", spellcheck: "false", autocapitalize: "off", title: "1 to 64 of A-Z a-z 0-9 . _ - (and #ephemeral at the end)" });
}

export async function createTopic() {
  const name = nameInput("topic");
  const sync = choices("When a publish is acknowledged", Object.entries(SYNC_MODES).map(([mode, text]) => [mode, mode, text]), "always");
  const help = "1 to 64 of A-Z a-z 0-9 . _ - ; with #ephemeral at the end, the topic is in memory only";
  const made = await dialog({
    title: "New topic", submit: "Create", fields: [field("Name", name, help), h("fieldset.field", {}, h("span", {}, "Sync"), sync)],
    act: () => post("/api/topic/create", { topic: name.value }, name.value.endsWith("#ephemeral") ? {} : { sync: sync.value }),
  });
  if (made) go(link("topics", name.value));
}

const HEADER = /^\s*([^:\s][^:]*?)\s*:\s?(.*)$/;

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

export async function publish(topic) {
  const body = h("textarea", { name: "body", rows: "6", spellcheck: "false", "aria-label": "Body" });
  const lines = checkbox("One message per line (empty lines are skipped)");
  const key = h("input", { name: "key", autocomplete: "off", spellcheck: "false", placeholder: "none" });
  const tag = h("input", { name: "tag", autocomplete: "off", spellcheck: "false", placeholder: "none" });
  const headers = h("textarea", { name: "headers", rows: "2", spellcheck: "false", placeholder: "none", "aria-label": "Headers" });
  const delay = h("input", { name: "delay", autocomplete: "off", placeholder: "none" });
  const done = await dialog({
    title: `Publish to ${topic}`, submit: "Publish", wide: true,
    fields: [
      field("Body", body), lines,
      h("div.pair", {}, field("Key", key, "an ordered channel keeps messages of one key in order"), field("Tag", tag, "a channel with tags receives only messages with these tags")),
      field("Headers", headers, "name: value, one header per line"), field("Delay", delay, "such as 30s, 10m or 7d; at most 366d"),
    ],
    act: () => {
      const wait = delay.value.trim() ? parseDuration(delay.value) : 0;
      if (wait === null) throw new Wrong("Enter a delay: a number with s, m, h or d, such as 30s.");
      const bodies = body.value.split("\n").filter(Boolean);
      if (lines.input.checked && !bodies.length) throw new Wrong("There is no line to publish. Enter a message.");
      const named = parseHeaders(headers.value);
      return post("/api/topic/publish", { topic }, {
        ...(lines.input.checked ? { bodies } : { body: body.value }),
        ...(key.value ? { key: key.value } : {}),
        ...(tag.value ? { tag: tag.value } : {}),
        ...(Object.keys(named).length ? { headers: named } : {}),
        ...(wait ? { delay_s: wait } : {}),
      });
    },
  });
  if (done) tell(sentence(done));
}

/** Return a sentence about the result of a publish. */
function sentence({ count: sent, offset, keys }) {
  const them = sent === 1 ? "Published" : `Published ${sent} messages`;
  const on = sent === 1 ? "it is on disk" : "they are on disk";
  if (keys.length) return `${them}: ${on}, and delayed.`;
  return offset === null ? `${them}: ${on}.` : `${them}: ${on}, ${sent === 1 ? "at" : "from"} offset ${offset}${sent === 1 ? "" : " on"}.`;
}

export function pauseTopic(topic, on) {
  if (!on) return attempt(`${topic} is unpaused.`, () => post("/api/topic/unpause", { topic }));
  return confirm({
    title: `Pause ${topic}?`, query: { action: "topic.pause", topic }, submit: "Pause", danger: false,
    text: "Publishers continue. Channels get no messages that are published from now on, until the topic is unpaused.", act: () => post("/api/topic/pause", { topic }),
  });
}

export async function emptyTopic(topic) {
  const text = "Clears the messages that wait for a first channel or because the topic is paused. Channels keep their messages.";
  const done = await confirm({ title: `Empty ${topic}?`, text, query: { action: "topic.empty", topic }, name: topic, submit: "Empty", act: () => post("/api/topic/empty", { topic }) });
  if (done) tell(`${topic} is empty.`);
}

export async function deleteTopic(topic) {
  const text = "The topic, its channels and its log are deleted, and their space is freed. This cannot be undone.";
  const done = await confirm({ title: `Delete ${topic}?`, text, query: { action: "topic.delete", topic }, name: topic, submit: "Delete for good", act: () => post("/api/topic/delete", { topic }, { force: true }) });
  if (!done) return;
  tell(`${topic} is deleted.`);
  go("#/");
}

const CHANGEABLE = ["always", "bucket"]; // the other sync modes are chosen when a topic is created

export async function configureTopic(topic, now, sync) {
  const form = settingsForm(TOPIC, now, "as set for the broker");
  const list = h("select", { name: "sync" }, CHANGEABLE.map((mode) => h("option", { value: mode, selected: mode === sync }, mode)));
  const modes = CHANGEABLE.includes(sync) ? [field("Sync", list, "when a publish is acknowledged; bucket needs a broker with a bucket")] : [];
  const done = await dialog({
    title: `How long ${topic} keeps messages`, submit: "Save", wide: true,
    fields: [
      h("p.quiet", {}, "Finished messages are removed when one of the first three limits is exceeded. “none” means no limit, and an empty field means the broker's setting. Unfinished messages are removed only if you set it here."),
      h("div.pair", {}, form.elements, modes),
    ],
    act: () => post("/api/topic/configure", { topic }, { ...form.changes(), ...(modes.length && list.value !== sync ? { sync: list.value } : {}) }),
  });
  if (done) tell("Saved.");
  return done;
}
