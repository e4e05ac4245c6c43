// The columns of the tables of channels, on a topic's page and on the page of all channels.

import { h } from "../base/dom.js";
import { count, duration, rate } from "../base/format.js";
import { isAlarm, isHealthy } from "../base/model.js";
import { link } from "../base/router.js";
import { figureCell, pills } from "./parts.js";
import { Spark } from "./spark.js";

const MANY = 1000; // only a backlog of at least this size is coloured

/** Return the age of the oldest unfinished message, by the broker's clock, as {text, exact}. */
export function age(thing, now) {
  if (thing.oldest_ms === 0) return { text: "–", exact: "everything is finished" };
  if (!thing.oldest_ms) return { text: "–", exact: "not known yet" };
  const seconds = Math.max(0, (now - thing.oldest_ms) / 1000);
  return duration(seconds >= 1 ? Math.round(seconds) : seconds);
}

/** Return the time to drain. Null means that the backlog did not shrink in the last ten seconds. */
export function drain(seconds) {
  if (seconds === 0) return { text: "–", exact: "no messages wait" };
  if (seconds === null || seconds === undefined) return { text: "not now", exact: "the backlog did not shrink in the last 10 s" };
  return duration(seconds >= 1 ? Math.round(seconds) : seconds);
}

/** Return the states by which channels can be filtered. A channel grows if its backlog did not shrink
 * in the last ten seconds, although messages come. */
export function channelStates(model) {
  return {
    idle: { text: "no consumer", holds: (one) => one.consumers === 0 }, unwell: { text: "unwell", holds: (one) => isAlarm(one) || !isHealthy(one) },
    growing: { text: "growing", holds: (one) => one.depth > 0 && one.drain_s === null && model.topic(one.topic)?.in > 0 }, paused: { text: "paused", holds: (one) => Boolean(one.paused) },
  };
}

/** Return the columns. With `topics`, the first column is the topic. With `trails`, there are
 * sparklines. */
export function channelColumns(model, { topics = false, trails = null } = {}) {
  const plain = (key, title, width, rank, hint, state = () => "") => ({
    key, title, hint, num: true, width, rank, value: (channel) => channel[key], show: (cell, channel) => figureCell(cell, count(channel[key]), channel[key], state(channel)),
  });
  const sparked = (key, title, kind, format, hint, rank) => ({
    key, title, hint, num: true, rank, width: trails ? "170px" : "104px", value: (channel) => channel[key],
    make: (cell) => {
      if (!trails) return;
      cell.spark = new Spark(kind);
      cell.figure = h("b");
      cell.append(h("div.with-spark", {}, cell.spark.element, cell.figure));
    },
    show: (cell, channel) => {
      figureCell(cell.figure ?? cell, format(channel[key]), channel[key], key === "depth" && isAlarm(channel, "depth") ? "alarm" : "");
      cell.spark?.draw(trails.values(channel.name, key));
    },
  });
  return [
    {
      key: "name", title: "Channel", value: (channel) => (topics ? `${channel.topic}/${channel.name}` : channel.name),
      make: (cell, channel) => {
        cell.pills = h("span.pills");
        const full = topics ? `${channel.topic} / ${channel.name}` : channel.name;
        const name = h("a.name", { href: link("topics", channel.topic, "channels", channel.name), title: full }, topics && h("span.faint", {}, `${channel.topic} / `), channel.name);
        cell.append(name, " ", cell.pills);
      },
      show: (cell, channel) => pills(cell.pills, channel),
    },
    sparked("depth", "Waiting", "wait", count, "neither in flight nor deferred"),
    sparked("out", "Finished/s", "out", rate, undefined, 2),
    plain("in_flight", "In flight", "84px", 2, "with consumers, not yet answered"),
    plain("deferred", "Deferred", "84px", 3, "requeued with a delay that is not over"),
    { key: "oldest", title: "Oldest", hint: "age of the oldest unfinished message", num: true, width: "92px", rank: 2, value: (channel) => (channel.oldest_ms ? -channel.oldest_ms : null), show: (cell, channel) => figureCell(cell, age(channel, model.now()), channel.oldest_ms, isAlarm(channel, "age_s") ? "alarm" : "") },
    { key: "drain", title: "To drain", hint: "until it is empty, at the present rates", num: true, width: "92px", rank: 3, value: (channel) => channel.drain_s ?? Infinity, show: (cell, channel) => figureCell(cell, drain(channel.drain_s), channel.drain_s, channel.drain_s === null && channel.depth >= MANY ? "warn" : "") },
    plain("requeued", "Requeued", "98px", 3),
    plain("dead", "Dead", "64px", 3, "moved to the dead-letter topic"),
    plain("consumers", "Consumers", "104px", undefined, undefined, (channel) => (channel.consumers === 0 && channel.depth > 0 ? "warn" : "")),
  ];
}
