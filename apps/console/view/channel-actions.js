// Actions on a channel, each with its dialog: create, pause, empty, seek, redrive, configure,
// delete.

import { post, Wrong } from "../base/api.js";
import { h, show } from "../base/dom.js";
import { count } from "../base/format.js";
import { go, link } from "../base/router.js";
import { CHANNEL } from "../base/settings.js";
import { choices, confirm, dialog, field, seenTopic } from "./dialog.js";
import { settingsForm, settingsOf, shownSettings } from "./settings.js";
import { nameInput } from "./topic-actions.js";
import { attempt, tell } from "./toast.js";

/** A field for a local date and time. Its value is in ms since 1970. */
function timeInput(label) {
  const input = h("input", { type: "datetime-local", step: "1", "aria-label": label });
  const local = new Date(Date.now() - new Date().getTimezoneOffset() * 60_000);
  input.value = local.toISOString().slice(0, 19);
  return input;
}

function offsetInput(label, value = "") {
  const input = h("input", { inputmode: "numeric", pattern: "[0-9]+", autocomplete: "off", "aria-label": label });
  input.value = value;
  return input;
}

/** A choice of a position: earliest, latest, an offset or a time. `.asked()` returns the position
 * in the form of a request's body and of the preview. */
function position(options, chosen, changed) {
  const offset = offsetInput("Offset");
  const time = timeInput("Time");
  const more = { offset, time };
  const element = choices("Where", options.map(([value, text, help]) => [value, text, more[value] ?? help]), chosen, () => {
    arrange();
    changed?.();
  });
  const arrange = () => {
    show(offset, element.value === "offset");
    show(time, element.value === "time");
  };
  offset.addEventListener("input", () => changed?.());
  time.addEventListener("input", () => changed?.());
  element.asked = () => {
    if (element.value === "time") {
      const ms = new Date(time.value).getTime();
      if (Number.isNaN(ms)) throw new Wrong("Choose a date and a time.");
      return { body: { time_ms: ms }, text: `time:${ms}` };
    }
    if (element.value === "offset") {
      if (!/^\d+$/.test(offset.value.trim())) throw new Wrong("Enter an offset: a whole number.");
      return { body: Number(offset.value), text: offset.value.trim() };
    }
    if (element.value === null) throw new Wrong("Choose a position to see what the seek does.");
    return { body: element.value || undefined, text: element.value };
  };
  arrange();
  return element;
}

export async function createChannel(topic) {
  const name = nameInput("channel");
  const start = position([["", "default", "the first channel gets all waiting messages, a later one only new messages"], ["earliest", "earliest", "all messages in the log"], ["latest", "latest", "only new messages"], ["offset", "at an offset"], ["time", "at a time"]], "");
  const form = settingsForm(CHANNEL.filter((row) => row.fixed));
  const made = await dialog({
    title: `New channel of ${topic}`, submit: "Create", wide: true,
    fields: [field("Name", name), h("fieldset.field", {}, h("span", {}, "Starts"), start), ...form.elements],
    act: () => post("/api/channel/create", { topic, channel: name.value }, { ...(start.asked().body === undefined ? {} : { start: start.asked().body }), ...form.changes() }),
  });
  if (made) go(link("topics", topic, "channels", name.value));
}

export function pauseChannel(topic, channel, on) {
  const query = { topic, channel };
  const name = `${topic}/${channel}`;
  if (!on) return attempt(`${name} is unpaused.`, () => post("/api/channel/unpause", query));
  return confirm({
    title: `Pause ${name}?`, query: { action: "channel.pause", ...query }, submit: "Pause", danger: false,
    text: "Its consumers get no new messages until it is unpaused. Messages wait meanwhile.", act: (seen) => post("/api/channel/pause", query, { seen }),
  });
}

export async function emptyChannel(topic, channel) {
  const query = { topic, channel };
  const name = `${topic}/${channel}`;
  const done = await confirm({ title: `Empty ${name}?`, query: { action: "channel.empty", ...query }, name, submit: "Empty", act: (seen) => post("/api/channel/empty", query, { seen }) });
  if (done) tell(`${name} is empty.`);
}

export async function deleteChannel(topic, channel) {
  const query = { topic, channel };
  const name = `${topic}/${channel}`;
  const done = await confirm({
    title: `Delete ${name}?`, text: "The channel and its position are deleted. The messages stay for the other channels. This cannot be undone.",
    query: { action: "channel.delete", ...query }, name, submit: "Delete for good", act: (seen) => post("/api/channel/delete", query, { force: true, seen }),
  });
  if (!done) return;
  tell(`${name} is deleted.`);
  go(link("topics", topic));
}

export async function seekChannel(topic, channel) {
  const query = { topic, channel };
  const name = `${topic}/${channel}`;
  let ask = () => {};
  const to = position([["earliest", "earliest", "all messages in the log are delivered again"], ["latest", "latest", "waiting messages are skipped"], ["offset", "to an offset"], ["time", "to a time"]], null, () => look());
  const look = () => {
    try {
      ask({ action: "channel.seek", ...query, to: to.asked().text });
    } catch (error) {
      if (!(error instanceof Wrong)) throw error;
      ask(null, error.message);
    }
  };
  let answer = null;
  const done = await confirm({
    title: `Seek ${name}`, submit: "Seek", name, fields: [to], text: "Moves the channel to a position. Messages from there on are delivered (again); messages before it are not.",
    needs: (said) => (!said ? "nothing" : said.harmless ? "agree" : "type"),
    follow: (asks) => {
      ask = asks;
      look();
    },
    act: async (seen) => { answer = await post("/api/channel/seek", query, { to: to.asked().body, seen }); },
  });
  if (done) tell(typeof answer?.offset === "number" ? `${name} continues at offset ${answer.offset}.` : `${name} has moved.`);
}

/** Send dead letters back to their channels. The redrive runs in the broker, and the page shows its
 * progress. */
export async function redrive(topic, waiting) {
  const number = h("input", { inputmode: "numeric", autocomplete: "off", placeholder: waiting ? `all (${count(waiting).exact})` : "all that exist now" });
  const other = h("input", { autocomplete: "off", spellcheck: "false", placeholder: "its original topic" });
  const pace = h("input", { inputmode: "decimal", autocomplete: "off", placeholder: "no limit" });
  const done = await confirm({
    title: `Redrive ${topic}`, submit: "Redrive", danger: false, query: { action: "redrive", topic },
    text: "Each dead letter is published again to its original topic, for the channel that gave it up, with attempts from 1. It is finished here when that is durable. First fix what made the messages fail.",
    fields: [h("div.pair", {}, field("How many", number), field("To another topic", other)), field("At most so many a second", pace)],
    act: (seen) => {
      const body = { seen };
      if (pace.value.trim()) {
        body.rate = Number(pace.value);
        if (!(body.rate > 0)) throw new Wrong("Enter how many a second: a number above 0, or nothing for no limit.");
      }
      if (number.value.trim()) {
        if (!/^[1-9]\d*$/.test(number.value.trim())) throw new Wrong("Enter how many: a whole number of 1 or more, or nothing for all.");
        body.count = Number(number.value);
      }
      if (other.value.trim()) body.to = other.value.trim();
      return post("/api/redrive", { topic }, body);
    },
  });
  if (done) tell("Redrive started.");
  return done;
}

export async function configureChannel(topic, channel, { settings: now, topic_uuid: uuid }) {
  const form = settingsForm(settingsOf(topic, channel, CHANNEL.filter((row) => !row.fixed)), now);
  const fixed = shownSettings(CHANNEL.filter((row) => row.fixed), now).map(([label, text]) => `${label}: ${text}`).join("; ");
  const done = await dialog({
    title: `Settings of ${topic}/${channel}`, submit: "Save", wide: true,
    fields: [h("p.quiet", {}, `Cannot be changed after creation: ${fixed}. An empty field means the default.`), h("div.pair", {}, form.elements)],
    act: () => post("/api/channel/configure", { topic, channel }, { ...form.changes(), seen: seenTopic(uuid) }),
  });
  if (done) tell("Saved.");
  return done;
}
