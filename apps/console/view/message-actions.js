// Actions on chosen messages: skip them, send dead letters back or discard them, copy a body, edit
// a message and send it again. Each dialog names the topic, the channel, and the number of messages.

import { explain, get, post, Wrong } from "../base/api.js";
import { h } from "../base/dom.js";
import { plural } from "../base/format.js";
import { may } from "../base/model.js";
import { confirm, field } from "./dialog.js";
import { button, copied, permit } from "./parts.js";
import { publish } from "./publish.js";
import { tell } from "./toast.js";

const WHOLE_MAX = 1024 * 1024; // the most bytes of a body that the broker shows
const DEAD = /^zsq-dead-/;
const ADDRESS = "zsq-channel"; // the header that names the only channel of a message

const effective = (said) => (said && !said.harmless ? "agree" : "nothing");

function skipDialog(topic, channel, offsets, more) {
  const what = plural(offsets.length, "message");
  return confirm({
    title: `Skip ${what} of ${channel() ? `${topic}/${channel()}` : topic}?`, submit: "Skip", needs: effective, ...more,
    text: "For messages that no consumer can handle. A consumer that has one of them answers too late. An ordered channel goes on with the next message of the key.",
    act: async (seen) => {
      const query = { topic, channel: channel() };
      const { offsets: skipped } = await post("/api/channel/skip", query, { offsets, seen });
      tell(`${topic}/${query.channel} has skipped ${plural(skipped.length, "message")}.`);
    },
  });
}

/** Skip messages for a channel. */
export function skipMessages(topic, channel, offsets) {
  return skipDialog(topic, () => channel, offsets, { query: { action: "channel.skip", topic, channel, offsets: offsets.join(",") } });
}

/** Skip messages for one of these channels, which the user chooses. */
function skipForOne(topic, channels, offsets) {
  const select = h("select", { "aria-label": "Channel" }, h("option", { value: "" }, "Choose a channel"), channels.map((one) => h("option", { value: one }, one)));
  let ask;
  const look = () => {
    if (select.value) ask({ action: "channel.skip", topic, channel: select.value, offsets: offsets.join(",") });
    else ask(null, "Choose the channel that skips them.");
  };
  select.addEventListener("change", () => look());
  return skipDialog(topic, () => select.value, offsets, { fields: [field("Channel", select)], follow: (asks) => { ask = asks; look(); } });
}

async function cancelMessages(topic, offsets) {
  const what = plural(offsets.length, "message");
  return confirm({
    title: `Cancel ${what} of ${topic}?`, submit: "Cancel them",
    text: "No channel delivers them any more. A consumer that has one of them drops it, and a handler that has begun it is told.",
    act: async () => {
      const { channels } = await post("/api/message/cancel", { topic }, { offsets });
      const count = new Set(Object.values(channels).flat()).size;
      tell(`${plural(count, "message")} of ${topic} ${count === 1 ? "is" : "are"} cancelled.`);
    },
  });
}

async function revokeKey(topic, key) {
  return confirm({
    title: `Cancel all messages of ${topic} with the revoke key ${key}?`, submit: "Cancel them",
    text: "No channel delivers those that were published until now. Delayed ones are removed.",
    act: async () => {
      await post("/api/message/revoke", { topic }, { keys: [key] });
      tell(`${topic}: the key ${key} is revoked.`);
    },
  });
}

async function sendBack(topic, offsets) {
  const done = await confirm({
    title: `Redrive ${plural(offsets.length, "dead letter")} of ${topic}?`, submit: "Redrive", danger: false, query: { action: "redrive", topic, offsets: offsets.join(",") },
    text: "Each is published again to its original topic, for the channel that gave it up. It is finished here when that is durable. First fix what made it fail.",
    needs: (said) => (said?.count ? "agree" : "nothing"), act: (seen) => post("/api/redrive", { topic }, { offsets, seen }),
  });
  if (done) tell("Redrive started.");
  return done;
}

async function discard(topic, offsets) {
  return confirm({
    title: `Discard ${plural(offsets.length, "dead letter")} of ${topic}?`, submit: "Discard", needs: effective, query: { action: "redrive.discard", topic, offsets: offsets.join(",") },
    text: "They are not sent back by a later redrive.",
    act: async (seen) => {
      const { offsets: gone } = await post("/api/redrive/discard", { topic }, { offsets, seen });
      tell(`${plural(gone.length, "dead letter")} of ${topic} ${gone.length === 1 ? "is" : "are"} discarded.`);
    },
  });
}

/** Return the actions on chosen messages of a topic, for `Selection`. */
export function topicSelection(topic, model) {
  const row = () => model.topic(topic);
  const common = { needs: "admin on this topic", permitted: () => may(row(), "a") };
  const dead = (messages) => messages.some((one) => one.headers?.["zsq-dead-topic"]);
  return [
    { ...common, text: "Redrive selected", shown: dead, act: (offsets) => sendBack(topic, offsets) },
    { ...common, text: "Discard selected", danger: true, shown: dead, act: (offsets) => discard(topic, offsets) },
    { ...common, text: "Cancel selected", danger: true, act: (offsets) => cancelMessages(topic, offsets) },
    { ...common, text: "Skip selected", danger: true, act: (offsets) => skipForOne(topic, [...(row()?.channels?.keys() ?? [])].sort(), offsets) },
  ];
}

/** Return the message with its whole body. Throws Wrong if the body is too large. */
async function whole(message, topic) {
  if (!message.body.cut) return message;
  const { messages } = await get("/api/messages", { topic, offset: message.offset, count: 1, body_max: WHOLE_MAX });
  const [found] = messages;
  if (found?.offset !== message.offset) throw new Wrong(`Message ${message.offset} is not in the log any more.`);
  if (found.body.cut) throw new Wrong("The body has more than 1 MiB. Download it, and publish it with zsq pub.");
  return found;
}

async function tried(act) {
  try {
    await act();
  } catch (error) {
    tell(explain(error), true);
  }
}

/** Return the buttons of one message. */
export function messageButtons(message, topic, model) {
  const copy = button("Copy body", () => void tried(async () => {
    const { body } = await whole(message, topic);
    await copied(body.text ?? body.base64, body.text === undefined ? "Copied as base64." : "Copied.");
  }), { kind: "small" });
  const again = button("Edit and send again", () => void tried(async () => sendAgain(await whole(message, topic), topic)), { kind: "small" });
  const target = originOf(message)?.topic ?? topic;
  permit(again, may(model.topic(target), "p"), "publish");
  const key = message.headers?.["zsq-revoke-key"];
  if (typeof key !== "string") return [copy, again];
  const revoke = button("Cancel by its key", () => void tried(() => revokeKey(topic, key)), { kind: "small" });
  permit(revoke, may(model.topic(topic), "a"), "admin on this topic");
  return [copy, again, revoke];
}

/** Return the topic and channel that a dead letter came from, or null. */
function originOf({ headers }) {
  const [topic, channel] = [headers?.["zsq-dead-topic"], headers?.["zsq-dead-channel"]];
  return typeof topic === "string" && typeof channel === "string" ? { topic, channel } : null;
}

function sendAgain(message, topic) {
  const origin = originOf(message);
  const headers = Object.fromEntries(Object.entries(message.headers ?? {}).filter(([name]) => !origin || !DEAD.test(name)));
  const cut = [message.key, ...Object.values(headers)].some((one) => one?.cut);
  if (cut) throw new Wrong("A header has more than 4 KiB, so the message cannot be sent again from here.");
  const only = origin?.channel ?? message.only_channel;
  if (only) headers[ADDRESS] = only;
  return publish(origin?.topic ?? topic, {
    ...message, headers,
    note: `A new message with this body, key, tag and headers.${only ? ` The header ${ADDRESS} names the only channel that gets it. Without it, all channels do.` : ""}`,
  });
}
