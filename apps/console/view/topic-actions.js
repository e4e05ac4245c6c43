// What can be done to a topic, each with its dialog: make it, publish, pause, empty, configure, delete.

import { post, postBytes, Wrong } from "../base/api.js";
import { h } from "../base/dom.js";
import { bytes, duration, parseBytes, parseDuration } from "../base/format.js";
import { go, link } from "../base/router.js";
import { checkbox, choices, confirm, dialog, field } from "./dialog.js";
import { attempt, tell } from "./toast.js";

const NAME = "[A-Za-z0-9._\\-]{1,64}(#ephemeral)?";

export function nameInput(label) {
  return h("input", { name: label, required: true, pattern: NAME, maxlength: "74", autocomplete: "off", spellcheck: "false", autocapitalize: "off", title: "1 to 64 of A-Z a-z 0-9 . _ - (and #ephemeral at the end)" });
}

export async function createTopic() {
  const name = nameInput("topic");
  const sync = choices("How a publish is answered", [
    ["always", "always", "answered when it is on disk: nothing that was answered is lost, whatever happens"],
    ["interval", "interval", "answered when it is written, synced every 100 ms: a power cut may cost that much"],
    ["never", "never", "the kernel decides when: a power cut may cost more"],
  ], "always");
  const help = "1 to 64 of A-Z a-z 0-9 . _ - ; with #ephemeral at the end it lives in memory only";
  const made = await dialog({
    title: "New topic", submit: "Create", fields: [field("Name", name, help), h("fieldset.field", {}, h("span", {}, "Sync"), sync)],
    act: () => post("/api/topic/create", { topic: name.value }, name.value.endsWith("#ephemeral") ? {} : { sync: sync.value }),
  });
  if (made) go(link("topics", name.value));
}

export async function publish(topic) {
  const body = h("textarea", { name: "body", rows: "6", spellcheck: "false", "aria-label": "Body" });
  const lines = checkbox("A message a line (empty lines are left out)");
  const defer = h("input", { name: "defer", inputmode: "decimal", placeholder: "none", autocomplete: "off" });
  let sent = 0;
  const done = await dialog({
    title: `Publish to ${topic}`, submit: "Publish", wide: true, fields: [field("Body", body), lines, field("Delay", defer, "such as 30s or 10m; at most an hour here")],
    act: async () => {
      const wait = defer.value.trim() ? parseDuration(defer.value) : 0;
      if (wait === null) throw new Wrong("A delay is a number with s, m or h, such as 30s.");
      if (lines.input.checked) {
        if (wait) throw new Wrong("A delay is for one message: leave it empty, or take out “a message a line”.");
        sent = body.value.split("\n").filter(Boolean).length;
        return postBytes("/mpub", { topic }, body.value);
      }
      sent = 1;
      return postBytes("/pub", { topic, ...(wait ? { defer: Math.round(wait * 1000) } : {}) }, body.value);
    },
  });
  if (done) tell(sent === 1 ? "Published: it is on disk." : `Published ${sent} messages: they are on disk.`);
}

export function pauseTopic(topic, on) {
  if (!on) return attempt(`${topic} is unpaused.`, () => post("/api/topic/unpause", { topic }));
  return confirm({
    title: `Pause ${topic}?`, query: { action: "topic.pause", topic }, submit: "Pause", danger: false,
    text: "Publishers go on. Channels get what was published before, and nothing that comes from now on until it is unpaused.", act: () => post("/api/topic/pause", { topic }),
  });
}

export async function emptyTopic(topic) {
  const text = "Clears what waits for a first channel, or behind the topic's pause. Channels keep what they have.";
  const done = await confirm({ title: `Empty ${topic}?`, text, query: { action: "topic.empty", topic }, name: topic, submit: "Empty", act: () => post("/api/topic/empty", { topic }) });
  if (done) tell(`${topic} is empty.`);
}

export async function deleteTopic(topic) {
  const text = "The topic, its channels and its log go, and their space is free. This cannot be undone.";
  const done = await confirm({ title: `Delete ${topic}?`, text, query: { action: "topic.delete", topic }, name: topic, submit: "Delete for good", act: () => post("/api/topic/delete", { topic }, { force: true }) });
  if (!done) return;
  tell(`${topic} is deleted.`);
  go("#/");
}

const BOUNDS = [
  ["keep_bytes", "Finished: bytes kept", "such as 10GiB; what is above it may go", bytes, parseBytes],
  ["keep_s", "Finished: time kept", "such as 7d", duration, parseDuration],
  ["keep_chunks", "Finished: chunks kept", "a number", (n) => ({ text: String(n) }), whole],
  ["max_bytes", "Unfinished: bytes at most", "such as 50GiB", bytes, parseBytes],
  ["max_s", "Unfinished: age at most", "such as 30d", duration, parseDuration],
];

function whole(text) {
  return /^\d+$/.test(text.trim()) ? Number(text) : null;
}

/** A bound as a text that reads back as the same number. */
export function editable(value, format, parse) {
  if (value === null || value === undefined) return "";
  if (value < 0) return "none";
  const text = format(value).text.replace(/[\u2009]/g, "");
  return parse(text) === value ? text : String(value);
}

export async function configureTopic(topic, now) {
  const inputs = BOUNDS.map(([key, label, help, format, parse]) => {
    const input = h("input", { name: key, autocomplete: "off", placeholder: "as the broker says" });
    input.value = editable(now?.[key], format, parse);
    input.was = input.value;
    return { key, label, parse, input, element: field(label, input, help) };
  });
  const full = h("select", { name: "when_full" }, [["reject", "refuse publishes"], ["drop-oldest", "drop the oldest messages, unfinished or not"]].map(([value, text]) => h("option", { value, selected: value === now?.when_full }, text)));
  const was = full.value;
  const done = await dialog({
    title: `How long ${topic} keeps messages`, submit: "Save", wide: true,
    fields: [
      h("p.quiet", {}, "What all channels have finished goes when any of the first three is passed; none is written as “none”, and empty means as the broker was started. What is unfinished goes only if you say so here."),
      h("div.pair", {}, inputs.map((one) => one.element), field("When that is reached", full)),
    ],
    act: () => {
      const changes = {};
      for (const { key, label, parse, input } of inputs) {
        const text = input.value.trim();
        if (text === input.was) continue;
        const value = text === "" ? null : text === "none" ? -1 : parse(text);
        if (value === null && text !== "") throw new Wrong(`“${text}” is not a value for “${label}”.`);
        changes[key] = value;
      }
      if (full.value !== was) changes.when_full = full.value;
      return post("/api/topic/configure", { topic }, changes);
    },
  });
  if (done) tell("Saved.");
  return done;
}
