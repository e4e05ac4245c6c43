// Page of a topic: its values over time. The tabs show its channels, chunks, messages, delayed
// messages, producers, retention and removal.

import { post } from "../base/api.js";
import { h, put, setText, show } from "../base/dom.js";
import { bytes, count, rate } from "../base/format.js";
import { may } from "../base/model.js";
import { link } from "../base/router.js";
import { age } from "../view/channel-table.js";
import { redrive } from "../view/channel-actions.js";
import { History } from "../view/history.js";
import { button, empty, Figures, head, markTab, permit, pills, troubles, unanswered } from "../view/parts.js";
import { publish } from "../view/publish.js";
import { deleteTopic, emptyTopic, pauseTopic } from "../view/topic-actions.js";
import { channelsTab } from "../tabs/channels.js";
import { chunksTab } from "../tabs/chunks.js";
import { delayedTab } from "../tabs/delayed.js";
import { errorsTab } from "../tabs/errors.js";
import { keepingTab } from "../tabs/keeping.js";
import { messagesTab } from "../tabs/messages.js";
import { producersTab } from "../tabs/producers.js";
import { removalTab } from "../tabs/removal.js";
import { searchTab } from "../tabs/search.js";
import { tailTab } from "../tabs/tail.js";
import { goToParts } from "./cluster.js";

const TABS = {
  channels: ["Channels", channelsTab, "channel_count"], messages: ["Messages", messagesTab], errors: ["Errors", errorsTab, "dead_letters"],
  search: ["Search", searchTab], tail: ["Tail", tailTab],
  chunks: ["Chunks", chunksTab, "chunks"], delayed: ["Delayed", delayedTab, "delayed"],
  producers: ["Producers", producersTab], keeping: ["Retention", keepingTab], removal: ["Retire", removalTab],
};
const PART = /^(.+)#\d+$/; // the name of a part: its topic, and its number
const FIGURES = [
  { key: "messages", name: "Published", hint: "messages, since the topic was created" }, { key: "offsets", name: "Offsets", hint: "oldest kept and next to come" },
  { key: "backlog", name: "Backlog", hint: "of its fullest channel: waiting, in flight and deferred" }, { key: "oldest", name: "Oldest", hint: "age of the oldest unfinished message" },
  { key: "in_flight", name: "In flight" }, { key: "deferred", name: "Deferred" }, { key: "delayed", name: "Delayed", hint: "published with a delay that is not over" },
  { key: "consumers", name: "Consumers" }, { key: "log", name: "On disk" },
];
const CHARTS = [
  { title: "Messages a second", format: rate, series: [{ key: "in", name: "published", kind: "in", area: true }, { key: "out", name: "finished", kind: "out" }] },
  { title: "Bytes a second", format: bytes, least: 1024, binary: true, series: [{ key: "in_bytes", name: "published", kind: "in", area: true }] },
  { title: "Backlog", format: count, least: 10, series: [{ key: "backlog", name: "unfinished", kind: "wait", area: true }] },
];

export function topicPage({ model, params, query, signal }) {
  const name = params.topic;
  const pause = button("Pause", () => void pauseTopic(name, !model.topic(name)?.paused));
  const send = button("Publish", () => void publish(name), { kind: "main" });
  const clear = button("Empty", () => void emptyTopic(name));
  const remove = button("Delete", () => void deleteTopic(name), { kind: "danger" });
  const again = button("Redrive", () => void redrive(name, model.topic(name)?.backlog));
  const [, base] = PART.exec(name) ?? [];
  const top = head(name, [["Topics", "#/"], ...(base ? [[base, link("cluster", base)]] : [])], [send, again, pause, clear, remove]);
  const figures = new Figures(FIGURES, true);
  const history = new History({ query: { topic: name }, charts: CHARTS, figures: () => model.topic(name), model, signal });
  const links = Object.entries(TABS).map(([key, [title, , number]]) => {
    const n = number ? h("span.n") : null;
    return { key, number, n, element: h("a", { href: link("topics", name, key) }, title, n) };
  });
  const place = h("div.stack.tab-place");
  const trouble = h("p.note.alarm", { hidden: true, role: "status" });
  const jobs = new Jobs(name, model);
  const content = h("div.stack", {}, trouble, jobs.element, h("section.panel", { "aria-label": "Figures" }, figures.element), history.element,
    h("nav.tabs", { "aria-label": "About this topic" }, links.map((one) => one.element)), place);
  const missing = h("div.panel", { hidden: true }, empty(`There is no topic ${name}`, "It was deleted, it has another name, or your token does not permit you to see it. Its first message creates it:", `echo 'hello' | zsq pub ${name}`, h("a.linked", { href: "#/" }, "All topics")));
  const waits = unanswered();
  let tab = null;
  let shown = "";

  const open = (key, asked) => {
    tab?.close?.();
    shown = key;
    markTab(links, key);
    const [, make] = TABS[key];
    const ending = new AbortController();
    const both = AbortSignal.any([signal, ending.signal]);
    const made = make({ topic: name, model, query: asked, signal: both });
    tab = { ...made, close: () => { ending.abort(); made.close?.(); } };
    put(place, made.element);
    if (model.topic(name)) tab.update?.();
  };
  const update = () => {
    const topic = model.topic(name);
    show(waits, !topic && !model.answered);
    show(missing, !topic && model.answered);
    for (const one of [content, top.buttons]) show(one, Boolean(topic));
    if (!topic) return;
    pills(top.marks, topic);
    const bad = troubles(topic);
    show(trouble, bad !== "");
    setText(trouble, bad);
    setText(pause, topic.paused ? "Unpause" : "Pause");
    permit(send, may(topic, "p"), "publish");
    for (const one of [pause, clear, remove, again]) permit(one, may(topic, "a"), "admin on this topic");
    const isDead = typeof topic.dead_letters === "number";
    show(again, isDead || /\.dead$/.test(name));
    show(links.find((one) => one.key === "errors").element, isDead);
    for (const { number, n } of links) if (n) setText(n, topic[number] ? count(topic[number]).text : "");
    figures.set("messages", count(topic.messages));
    figures.set("offsets", { text: `${count(topic.start).text} – ${count(topic.head).text}`, exact: `${count(topic.start).exact} to ${count(topic.head).exact}` });
    figures.set("backlog", count(topic.backlog));
    for (const key of ["in_flight", "deferred", "delayed", "consumers"]) figures.set(key, count(topic[key]));
    figures.set("oldest", age(topic, model.now()));
    figures.set("log", bytes(topic.log_bytes));
    jobs.update();
    tab?.update?.();
  };
  open(params.tab in TABS ? params.tab : "channels", query);
  return {
    element: h("div.stack", {}, top.element, waits, content, missing), title: name, up: "#/", follow: { topic: name }, update,
    missing: async () => {
      if (await goToParts(name, signal)) return;
      model.answered = true;
      update();
    },
    tick: () => {
      const topic = model.topic(name);
      if (!topic) return;
      history.tick();
      figures.set("oldest", age(topic, model.now()));
      tab?.tick?.();
    },
    close: () => { tab?.close?.(); history.close(); },
    stays(next, asked) {
      const key = next.tab in TABS ? next.tab : "channels";
      if (next.topic !== name) return false;
      if (key !== shown || !tab?.stays?.(asked)) open(key, asked);
      return true;
    },
  };
}

/** The progress of this topic's redrives. */
class Jobs {
  constructor(topic, model) {
    Object.assign(this, { topic, model, drawn: "" });
    this.element = h("div.stack");
  }

  update() {
    const mine = this.model.jobs.filter((job) => job.topic === this.topic).slice(-2);
    const said = JSON.stringify(mine);
    if (said === this.drawn) return;
    this.drawn = said;
    put(this.element, mine.map((job) => h(`div.note${job.state === "failed" ? ".alarm" : ""}`, { role: "status" }, words(job),
      job.state === "running" && button("Stop", () => void post("/api/job/stop", { id: job.id }), { kind: "small" }))));
  }
}

function words(job) {
  const state = { running: "Redrive is running", done: "Redrive is done", stopped: "Redrive was stopped", failed: "Redrive failed" }[job.state] ?? job.state;
  const places = (job.places ?? []).map((one) => `${one.count} to ${one.topic}${one.channel ? ` / ${one.channel}` : ""}`).join(", ");
  const reasons = Object.entries(job.reasons ?? {}).map(([why, number]) => `${number} stayed: ${why}`).join("; ");
  return [`${state}: ${job.sent} of ${job.total} sent`, places && ` (${places})`, ". ", reasons && `${reasons}. `, job.error && `${job.error} `].filter(Boolean).join("");
}
