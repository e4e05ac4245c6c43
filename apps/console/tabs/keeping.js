// Tab of a topic's retention, with facts about the topic that seldom change.

import { every, get } from "../base/api.js";
import { add, h, put } from "../base/dom.js";
import { bytes, count, duration } from "../base/format.js";
import { may } from "../base/model.js";
import { TOPIC } from "../base/settings.js";
import { asked, button, permit } from "../view/parts.js";
import { shownSettings } from "../view/settings.js";
import { configureTopic } from "../view/topic-actions.js";

export function keepingTab({ topic, model, signal }) {
  let now = null;
  const change = button("Change", async () => {
    if (await configureTopic(topic, now)) await load();
  });
  change.disabled = true;
  const keep = h("dl.facts");
  const about = h("dl.facts");
  const failed = h("p.note.warn", { hidden: true });
  const element = h("div.stack", {}, failed, h("div.grid.two", {},
    h("section.panel", { "aria-label": "How long messages are kept" }, h("header", {}, h("h2", {}, "How long messages are kept"), change), h("div.body", {}, keep)),
    h("section.panel", { "aria-label": "About this topic" }, h("header", {}, h("h2", {}, "About this topic")), h("div.body", {}, about))));
  const load = () => asked(failed, signal, async () => {
    const { topic: found } = await get("/api/topic", { topic }, signal);
    now = found;
    change.disabled = false;
    permit(change, may(model.topic(topic), "a"), "admin on this topic");
    draw(keep, about, found);
  });
  void every(5000, load, signal);
  return { element };
}

function draw(keep, about, topic) {
  facts(keep, [...shownSettings(TOPIC, topic.settings), ["Finished and kept now", bytes(topic.finished_bytes).text], ["Removed so far", bytes(topic.removed_bytes).text]]);
  const latency = topic.latency ?? {};
  facts(about, [
    ["Sync", topic.sync], ["Published", `${bytes(topic.bytes).text} in ${count(topic.messages).exact} messages`], ["Delayed", `${count(topic.delayed).exact}, ${bytes(topic.delayed_bytes).text}`],
    ["Spark's stages", `${count(topic.stages).exact}, ${bytes(topic.staged_bytes).text}`],
    ["Dropped, refused", `${count(topic.dropped).exact} messages, ${count(topic.refused).exact} publishes`], ["Lost to damage", `${count(topic.lost).exact} messages, ${count(topic.damaged).exact} blocks`],
    ["To finish, 10 min", latency.count ? `median ${duration(latency.p50_ms / 1000).text}, 99 % within ${duration(latency.p99_ms / 1000).text}, longest ${duration(latency.max_ms / 1000).text}` : "nothing was finished"],
    ...(topic.shipping && topic.shipping !== "off" ? [["In the bucket", shipped(topic)]] : []),
    ["At the last start", topic.recovery?.text ?? ""], ["uuid", h("code", {}, topic.uuid ?? "")],
  ]);
}

function shipped(topic) {
  const lag = topic.ship_lag_s ? `${duration(topic.ship_lag_s).text} behind` : "nothing is missing";
  return `shipping ${topic.shipping}, up to offset ${count(topic.shipped_end).exact}, ${lag}`;
}

export function facts(list, pairs) {
  put(list);
  for (const [name, value] of pairs) add(list, h("dt", {}, name), h("dd", {}, value));
}
