// Actions on a topic, each with its dialog: create, pause, empty, configure, delete.

import { post } from "../base/api.js";
import { h } from "../base/dom.js";
import { go, link } from "../base/router.js";
import { SYNC_MODES, TOPIC } from "../base/settings.js";
import { choices, confirm, dialog, field, seenTopic } from "./dialog.js";
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

export function pauseTopic(topic, on) {
  if (!on) return attempt(`${topic} is unpaused.`, () => post("/api/topic/unpause", { topic }));
  return confirm({
    title: `Pause ${topic}?`, query: { action: "topic.pause", topic }, submit: "Pause", danger: false,
    text: "Publishers continue. Channels get no messages that are published from now on, until the topic is unpaused.", act: (seen) => post("/api/topic/pause", { topic }, { seen }),
  });
}

export async function emptyTopic(topic) {
  const text = "Clears the messages that wait for a first channel or because the topic is paused. Channels keep their messages.";
  const done = await confirm({ title: `Empty ${topic}?`, text, query: { action: "topic.empty", topic }, name: topic, submit: "Empty", act: (seen) => post("/api/topic/empty", { topic }, { seen }) });
  if (done) tell(`${topic} is empty.`);
}

export async function deleteTopic(topic) {
  const text = "The topic, its channels and its log are deleted, and their space is freed. This cannot be undone.";
  const done = await confirm({ title: `Delete ${topic}?`, text, query: { action: "topic.delete", topic }, name: topic, submit: "Delete for good", act: (seen) => post("/api/topic/delete", { topic }, { force: true, seen }) });
  if (!done) return;
  tell(`${topic} is deleted.`);
  go("#/");
}

const CHANGEABLE = ["always", "bucket"]; // the other sync modes are chosen when a topic is created

export async function configureTopic(topic, { settings: now, sync, uuid }) {
  const form = settingsForm(TOPIC, now, "as set for the broker");
  const list = h("select", { name: "sync" }, CHANGEABLE.map((mode) => h("option", { value: mode, selected: mode === sync }, mode)));
  const modes = CHANGEABLE.includes(sync) ? [field("Sync", list, "when a publish is acknowledged; bucket needs a broker with a bucket")] : [];
  const done = await dialog({
    title: `How long ${topic} keeps messages`, submit: "Save", wide: true,
    fields: [
      h("p.quiet", {}, "Finished messages are removed when one of the first three limits is exceeded. “none” means no limit, and an empty field means the broker's setting. Unfinished messages are removed only if you set it here."),
      h("div.pair", {}, form.elements, modes),
    ],
    act: () => post("/api/topic/configure", { topic }, { ...form.changes(), ...(modes.length && list.value !== sync ? { sync: list.value } : {}), seen: seenTopic(uuid) }),
  });
  if (done) tell("Saved.");
  return done;
}
