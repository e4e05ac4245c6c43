// Page of a channel: its backlog and its rates over time. The tabs show its consumers, the messages
// that it holds, and its settings.

import { every, explain, get } from "../base/api.js";
import { h, put, setText, show } from "../base/dom.js";
import { count, duration, plural, rate } from "../base/format.js";
import { isAlarm, may } from "../base/model.js";
import { link } from "../base/router.js";
import { age, drain } from "../view/channel-table.js";
import { configureChannel, deleteChannel, emptyChannel, pauseChannel, seekChannel } from "../view/channel-actions.js";
import { History } from "../view/history.js";
import { button, empty, Figures, head, markTab, permit, pills, troubles, unanswered } from "../view/parts.js";
import { consumersTab } from "../tabs/consumers.js";
import { countersTab } from "../tabs/counters.js";
import { heldTab } from "../tabs/held.js";

const FRESH_MS = 3000;
const TABS = { consumers: ["Consumers", consumersTab], held: ["Held messages", heldTab], settings: ["Settings and counters", countersTab] };
const FIGURES = [
  { key: "depth", name: "Waiting", hint: "neither in flight nor deferred" }, { key: "in_flight", name: "In flight", hint: "with consumers, not yet answered" },
  { key: "deferred", name: "Deferred", hint: "requeued with a delay that is not over" }, { key: "oldest", name: "Oldest unfinished" },
  { key: "drain", name: "Time to drain", hint: "until it is empty, at the present rates" }, { key: "consumers", name: "Consumers" },
];
const MINOR = [ // all since the channel was created
  { key: "came", name: "Received", hint: "messages that the channel received" }, { key: "delivered", name: "Delivered", hint: "with redeliveries" }, { key: "finished", name: "Finished" },
  { key: "requeued", name: "Requeued", hint: "given back by consumers" }, { key: "timed_out", name: "Timed out", hint: "not answered in time" }, { key: "dead", name: "Dead", hint: "moved to the dead-letter topic" },
  { key: "passed_over", name: "Filtered", hint: "left out by tags or sampling, or meant for another channel" }, { key: "skipped", name: "Skipped", hint: "by a user, without a delivery" }, { key: "expired", name: "Expired", hint: "too old" }, { key: "dropped", name: "Dropped", hint: "removed unfinished by a bound of the topic" }, { key: "lost", name: "Lost", hint: "to damage on disk" },
];
const BAD = { timed_out: "warn", dead: "warn", dropped: "alarm", lost: "alarm" };
const ms = (value) => duration(typeof value === "number" ? value / 1000 : value);
const CHARTS = [
  { title: "Messages a second", format: rate, series: [{ key: "in", name: "received", kind: "in" }, { key: "out", name: "finished", kind: "out", area: true }, { key: "again", name: "redelivered", kind: "wait" }] },
  { title: "Depth", format: count, least: 10, series: [{ key: "depth", name: "waiting", kind: "wait", area: true }, { key: "in_flight", name: "in flight", kind: "in" }] },
  { title: "From publish to finish", format: ms, series: [{ key: "p50_ms", name: "median", kind: "in" }, { key: "p95_ms", name: "95 %", kind: "out" }, { key: "p99_ms", name: "99 %", kind: "third" }] },
];

export function channelPage({ model, params, query, signal }) {
  const { topic, channel: name } = params;
  const found = () => model.channel(topic, name);
  let fresh = null;
  const pause = button("Pause", () => void pauseChannel(topic, name, !found()?.paused));
  const settings = button("Settings", () => void configureChannel(topic, name, fresh.channel).then((done) => done && load()));
  const seek = button("Seek", () => void seekChannel(topic, name));
  const clear = button("Empty", () => void emptyChannel(topic, name));
  const remove = button("Delete", () => void deleteChannel(topic, name), { kind: "danger" });
  const top = head(name, [["Topics", "#/"], [topic, link("topics", topic)]], [pause, settings, seek, clear, remove]);
  const figures = new Figures(FIGURES);
  const minor = new Figures(MINOR.map((one) => ({ ...one, hint: [one.hint, "since the channel was created"].filter(Boolean).join(", ") })), true);
  const history = new History({ query: { topic, channel: name }, charts: CHARTS, figures: () => charted(found(), model.topic(topic)), model, signal, topics: ["in"] });
  const trouble = h("p.note.alarm", { hidden: true, role: "status" });
  const letters = h("p.note", { hidden: true });
  const blocked = h("div.note.warn", { hidden: true, role: "status" });
  const links = Object.entries(TABS).map(([key, [title]]) => ({ key, element: h("a", { href: link("topics", topic, "channels", name, key) }, title) }));
  const place = h("div.stack.tab-place");
  const content = h("div.stack", {}, trouble, blocked, letters, h("section.panel", { "aria-label": "Figures" }, figures.element, minor.element), history.element,
    h("nav.tabs", { "aria-label": "About this channel" }, links.map((one) => one.element)), place);
  const missing = h("div.panel", { hidden: true }, empty(`There is no channel ${name} of ${topic}`, "The channel or its topic was deleted, or your token does not permit you to see it. A consumer creates it:", `zsq sub ${topic} ${name}`, h("a.linked", { href: link("topics", topic) }, topic)));
  const waits = unanswered();
  let tab = null;
  let shown = "";
  let dead = null; // the number of dead letters that lie in the dead-letter topic

  const load = async () => {
    try {
      fresh = await get("/api/channel", { topic, channel: name }, signal);
      tab?.fresh?.(fresh);
      settings.disabled = !may(found(), "a");
      blockers(blocked, fresh.channel.blocked_by, link("topics", topic, "channels", name, "held"));
      dead = found()?.dead ? await lying(deadLettersOf(topic, name, fresh), signal) : null;
      update(); // an idle broker sends no change that would draw this
    } catch (error) {
      if (!signal.aborted) tab?.failed?.(explain(error));
    }
  };
  const open = (key, asked) => {
    tab?.close?.();
    shown = key;
    markTab(links, key);
    const ending = new AbortController();
    const made = TABS[key][1]({ topic, channel: name, model, query: asked, signal: AbortSignal.any([signal, ending.signal]) });
    tab = { ...made, close: () => { ending.abort(); made.close?.(); } };
    put(place, made.element);
    if (fresh) tab.fresh?.(fresh);
  };
  const update = () => {
    const channel = found();
    show(waits, !channel && !model.answered);
    show(missing, !channel && model.answered);
    for (const one of [content, top.buttons]) show(one, Boolean(channel));
    if (!channel) return;
    pills(top.marks, channel);
    const bad = troubles(channel);
    show(trouble, bad !== "");
    setText(trouble, bad);
    setText(pause, channel.paused ? "Unpause" : "Pause");
    for (const one of [pause, seek, clear, remove]) permit(one, may(channel, "a"), "admin on this topic");
    permit(settings, may(channel, "a") && fresh !== null, "admin on this topic");
    figures.set("depth", count(channel.depth), { under: `${rate(model.topic(topic).in).text}/s in, ${rate(channel.out).text}/s out`, state: isAlarm(channel, "depth") ? "alarm" : "" });
    figures.set("in_flight", count(channel.in_flight), { under: channel.dying ? `${count(channel.dying).text} on their way to the dead letters` : "" });
    figures.set("deferred", count(channel.deferred));
    const limited = Boolean(fresh?.channel.limited_since_s);
    const keysLimited = (fresh?.channel.tenants ?? []).some((one) => one.limited);
    const stuck = !limited && !keysLimited && channel.drain_s === null && channel.depth > 0;
    const pace = limited ? "its max_rate withholds messages" : keysLimited ? "the limits of its keys withhold messages" : stuck ? "it did not shrink in the last 10 s" : "";
    figures.set("drain", drain(channel.drain_s), { state: stuck ? "warn" : "", under: pace });
    figures.set("consumers", count(channel.consumers), { under: channel.consumers || !channel.depth ? "" : "messages wait, but no consumer is connected", state: channel.consumers || !channel.depth ? "" : "warn" });
    figures.set("oldest", age(channel, model.now()), { state: isAlarm(channel, "age_s") ? "alarm" : "" });
    for (const { key } of MINOR) minor.set(key, count(channel[key]), { state: channel[key] ? (BAD[key] ?? "") : "" });
    deadLetters(letters, dead, deadLettersOf(topic, name, fresh));
    tab?.update?.();
  };
  open(params.tab in TABS ? params.tab : "consumers", query);
  void every(FRESH_MS, load, signal);
  return {
    element: h("div.stack", {}, top.element, waits, content, missing), title: `${name} of ${topic}`, up: link("topics", topic), follow: { topic }, update,
    missing: () => { model.answered = true; update(); },
    tick: () => {
      if (!found()) return;
      history.tick();
      figures.set("oldest", age(found(), model.now()), { state: isAlarm(found(), "age_s") ? "alarm" : "" });
      tab?.tick?.();
    },
    close: () => { tab?.close?.(); history.close(); },
    stays(next, asked) {
      const key = next.tab in TABS ? next.tab : "consumers";
      if (next.topic !== topic || next.channel !== name) return false;
      if (key !== shown) open(key, asked);
      return true;
    },
  };
}

function charted(channel, topic) {
  return channel && { ...channel, in: topic.in, again: (channel.requeues ?? 0) + (channel.timeouts ?? 0) };
}

function deadLettersOf(topic, name, fresh) {
  return fresh?.channel?.settings?.dead_letter_topic || `${topic}.${name}.dead`;
}

/** Return how many dead letters lie in this topic and were not sent back, or null if the user may
 * not see that. */
async function lying(topic, signal) {
  try {
    return (await get("/api/preview", { action: "redrive", topic }, signal)).count;
  } catch (error) {
    if (error.status === 404) return 0;
    if (error.status === 403) return null;
    throw error;
  }
}

/** Show the messages that an ordered channel must finish first. Their errors are hostile texts. */
function blockers(place, rows, held) {
  const said = JSON.stringify(rows);
  if (place.said === said) return;
  place.said = said;
  show(place, rows.length > 0);
  put(place, h("ul.loses", {}, rows.map((one) => h("li", {},
    `Blocked by offset ${one.offset}: attempt ${one.attempts} failed, and ${plural(one.waiting, "message")} of its key ${one.waiting === 1 ? "waits" : "wait"}. Last error: ${one.error}`))),
  h("a.linked", { href: held }, "Held messages"));
}

function deadLetters(place, dead, where) {
  const said = dead ? `${dead} ${where}` : "";
  if (place.said === said) return;
  place.said = said;
  show(place, said !== "");
  if (said) put(place, `${plural(dead, "dead letter")} ${dead === 1 ? "waits" : "wait"} in `, h("a.linked", { href: link("topics", where, "messages") }, where), ". Find the cause, fix it, and redrive them from there.");
}
