// Actions on a schedule, each with its dialog: create, change, and publish its message now.

import { post } from "../base/api.js";
import { freshId, h } from "../base/dom.js";
import { relative } from "../base/format.js";
import { confirm, dialog, field } from "./dialog.js";
import { tell } from "./toast.js";

const MISSED = { one: "publish the latest one", all: "publish all of them (the last 1,000)", skip: "publish none" };
const CRON_HELP = "minute, hour, day of month, month, day of week; 0 3 * * * is each day at 03:00";

function text(name, value = "", more = {}) {
  const input = h("input", { name, autocomplete: "off", spellcheck: "false", autocapitalize: "off", ...more });
  input.value = value;
  return input;
}

/** Return the fields of the times of a schedule, with `settings()`. */
function times({ cron = "", timezone = "UTC", missed = "one" } = {}) {
  const list = freshId("zones");
  const fields = {
    cron: text("cron", cron, { required: true, placeholder: "0 3 * * *" }), timezone: text("timezone", timezone, { required: true, list }),
    missed: h("select", { name: "missed" }, Object.entries(MISSED).map(([value, words]) => h("option", { value, selected: value === missed }, words))),
  };
  const zones = h("datalist", { id: list }, ["UTC", ...Intl.supportedValuesOf("timeZone")].map((value) => h("option", { value })));
  return {
    elements: [field("Cron expression", fields.cron, CRON_HELP), h("div.pair", {}, field("Time zone", fields.timezone), field("Due times that were missed", fields.missed)), zones],
    settings: () => Object.fromEntries(Object.entries(fields).map(([name, input]) => [name, input.value.trim()])),
  };
}

function due(said, done) {
  return said.next_due_ms ? `${done} It is due ${relative(said.next_due_ms).text}.` : `${done} It is never due.`;
}

/** `topics` are the names to choose from. */
export async function createSchedule(topics) {
  const list = freshId("topics");
  const [name, topic, key, tag] = [text("schedule", "", { required: true }), text("topic", "", { required: true, list }), text("key", "", { placeholder: "none" }), text("tag", "", { placeholder: "none" })];
  const body = h("textarea", { name: "body", rows: "4", spellcheck: "false", "aria-label": "Body" });
  const when = times();
  const made = await dialog({
    title: "New schedule", submit: "Create", wide: true,
    fields: [
      h("div.pair", {}, field("Name", name), field("Topic", topic, "it must exist")), h("datalist", { id: list }, topics.map((value) => h("option", { value }))),
      when.elements, field("Body", body), h("div.pair", {}, field("Key", key), field("Tag", tag)),
    ],
    act: () => post("/api/schedule/add", { topic: topic.value.trim() }, { name: name.value.trim(), ...when.settings(), body: body.value, ...(key.value ? { key: key.value } : {}), ...(tag.value ? { tag: tag.value } : {}) }),
  });
  if (made) tell(due(made, `The schedule ${name.value.trim()} is added.`));
}

export async function changeSchedule(one) {
  const body = h("textarea", { name: "body", rows: "4", spellcheck: "false", placeholder: "unchanged", "aria-label": "Body" });
  const when = times(one);
  const done = await dialog({
    title: `Schedule ${one.name} of ${one.topic}`, submit: "Save", wide: true,
    fields: [h("p.quiet", {}, "Due times count from now on. The key cannot be changed."), when.elements, field("New body", body, `empty: the body of ${one.body_bytes} bytes stays`)],
    act: () => post("/api/schedule/set", { topic: one.topic }, { name: one.name, ...when.settings(), ...(body.value ? { body: body.value } : {}) }),
  });
  if (done) tell(due(done, "Saved."));
}

export async function runSchedule(one) {
  const done = await confirm({
    title: `Run ${one.name} of ${one.topic} now?`, text: `Its message is published once to ${one.topic}. Its due times do not change.`, submit: "Run now", danger: false,
    act: () => post("/api/schedule/run", { topic: one.topic }, { name: one.name }),
  });
  if (done) tell(`The message of ${one.name} is published.`);
}
