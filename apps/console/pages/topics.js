// The first page: all topics with their rates and backlogs, and the sums of all topics.

import { explain, get } from "../base/api.js";
import { h, setText, show } from "../base/dom.js";
import { bytes, count, duration, plural, rate } from "../base/format.js";
import { isAlarm, isHealthy } from "../base/model.js";
import { amend, link } from "../base/router.js";
import { Trails } from "../base/trails.js";
import { createTopic } from "../view/topic-actions.js";
import { button, empty, figureCell, Figures, permit, pills } from "../view/parts.js";
import { Spark } from "../view/spark.js";
import { RowSelection } from "../view/row-selection.js";
import { filterField, skeleton, stateField, Table } from "../view/table.js";
import { RaisedAlarms } from "../view/raised.js";

const ALL = "*"; // the name of the row of sums in the trails; no topic can have this name
const SERIES = ["in", "out", "backlog"];
const FIGURES = [
  { key: "in", name: "Published a second", spark: "in" },
  { key: "out", name: "Finished a second", hint: "all channels together", spark: "out" },
  { key: "backlog", name: "Backlog", hint: "of each topic's fullest channel: waiting, in flight and deferred", spark: "wait" },
  { key: "in_flight", name: "In flight", hint: "with consumers, not yet answered" },
  { key: "oldest", name: "Oldest unfinished" },
  { key: "log", name: "Logs on disk" },
  { key: "dead", name: "Dead letters", hint: "in all dead-letter topics, not sent back yet" },
];

export function topicsPage({ model, query, signal }) {
  const trails = new Trails();
  const selection = new RowSelection("topic", () => table);
  const table = new Table({
    label: "Topics", columns: [selection.column, ...columns(model, trails)], id: (topic) => topic.name, words: (topic) => `${topic.name} ${topic.paused ? "paused" : ""} ${topic.closed ? "closed" : ""} ${topic.health} ${isAlarm(topic) ? "alarm" : ""}`,
    sort: ["name", 1], empty: nothing(), query,
  });
  const figures = new Figures(FIGURES);
  const raised = new RaisedAlarms(model);
  const filter = filterField(() => table, "Filter topics", (text) => {
    amend({ q: text });
    tell();
  });
  const states = stateField(() => table, topicStates(trails), () => tell());
  const number = h("span.quiet", { role: "status" });
  const create = button("New topic", () => void createTopic());
  const waiting = skeleton(8);
  const panel = h("section.panel", { "aria-label": "Topics" }, waiting, table.element);
  show(table.element, false);
  const element = h("div.stack", {}, h("h1.unseen", {}, "Topics"), h("section.panel", { "aria-label": "All topics together" }, figures.element),
    raised.element, h("div.toolbar", {}, filter, states.element, number, h("div.end", {}, create)), selection.bar, panel);

  const tell = () => setText(number, table.shown === table.size ? plural(table.size, "topic") : `${table.shown} of ${plural(table.size, "topic")}`);
  const load = async () => {
    const found = await get("/api/histories", { span: "5m", points: 60, series: SERIES.join(",") }, signal);
    trails.load({ ...found.topics, [ALL]: sums(Object.values(found.topics)) }, found.step_s, found.end_ms);
  };
  let loading = null;
  const again = () => {
    loading ??= load().catch((error) => signal.aborted || console.warn(explain(error))).finally(() => { loading = null; });
  };
  again();
  let first = true;
  const update = () => {
    if (!model.full) return;
    show(waiting, false);
    show(table.element, true);
    table.update(model.topics.values());
    if (first && query.q) filter.querySelector("input").value = query.q;
    if (first && query.q) table.filter(query.q);
    if (first) states.choose(query.state);
    if (first) tick(); // so that the values are not empty for a second
    first = false;
    permit(create, model.broker.may?.admin !== false, "the permission admin");
    raised.update();
    selection.update();
    tell();
  };
  const tick = () => {
    if (!model.full) return;
    const sum = total(model);
    for (const topic of model.topics.values()) trails.sample(topic.name, topic);
    trails.sample(ALL, sum);
    if (trails.ready && !trails.advance(model.now())) again();
    figures.set("in", rate(sum.in), { under: `${bytes(sum.in_bytes).text} a second` });
    figures.set("out", rate(sum.out), { under: plural(sum.consumers, "consumer") });
    figures.set("backlog", count(sum.backlog), { under: sum.delayed ? `${count(sum.delayed).text} delayed` : "" });
    figures.set("in_flight", count(sum.in_flight), { under: sum.deferred ? `${count(sum.deferred).text} deferred` : "" });
    figures.set("oldest", sum.oldest_ms ? duration((model.now() - sum.oldest_ms) / 1000) : { text: "–", exact: "everything is finished" }, { under: sum.oldest_topic });
    figures.set("log", bytes(sum.log_bytes), { under: plural(sum.chunks, "chunk") });
    figures.set("dead", count(sum.dead_letters), { under: sum.dead_topics ? `in ${plural(sum.dead_topics, "topic")}` : "", state: sum.dead_letters ? "warn" : "" });
    for (const series of SERIES) figures.draw(series, trails.values(ALL, series));
    table.refresh();
  };
  return { element, title: "Topics", follow: {}, update, tick, close: () => table.close(), stays: () => true };
}

/** Return the states by which topics can be filtered. A topic grows if its backlog is larger than a
 * minute ago. */
function topicStates(trails) {
  const grows = ({ name }) => {
    const values = trails.values(name, "backlog").slice(-Math.ceil(60 / trails.step) - 1);
    return values.at(-1) > (values[0] ?? 0);
  };
  return {
    idle: { text: "no consumer", holds: (one) => one.consumers === 0 }, unwell: { text: "unwell", holds: (one) => isAlarm(one) || !isHealthy(one) },
    growing: { text: "growing", holds: grows }, paused: { text: "paused", holds: (one) => Boolean(one.paused) },
    dead: { text: "with dead letters", holds: (one) => one.dead_letters > 0 },
  };
}

function total(model) {
  const sum = { in: 0, in_bytes: 0, out: 0, backlog: 0, in_flight: 0, deferred: 0, consumers: 0, delayed: 0, log_bytes: 0, chunks: 0, dead_letters: 0, dead_topics: 0, oldest_ms: 0, oldest_topic: "" };
  for (const topic of model.topics.values()) {
    for (const key of ["in", "in_bytes", "out", "backlog", "in_flight", "deferred", "consumers", "delayed", "log_bytes", "chunks", "dead_letters"]) sum[key] += topic[key] ?? 0;
    if (topic.dead_letters) sum.dead_topics += 1;
    if (topic.oldest_ms && (!sum.oldest_ms || topic.oldest_ms < sum.oldest_ms)) {
      sum.oldest_ms = topic.oldest_ms;
      sum.oldest_topic = topic.name;
    }
  }
  return sum;
}

/** Add the rows value by value. The latest values are aligned. */
function sums(rows) {
  const out = {};
  for (const series of SERIES) {
    const all = rows.map((row) => row[series] ?? []);
    const length = Math.max(0, ...all.map((one) => one.length));
    out[series] = Array(length).fill(0);
    for (const values of all) values.forEach((value, at) => { out[series][length - values.length + at] += value ?? 0; });
  }
  return out;
}

function columns(model, trails) {
  const sparked = (key, title, kind, format, hint) => ({
    key, title, hint, num: true, width: "176px", value: (topic) => topic[key],
    make: (cell) => {
      cell.spark = new Spark(kind);
      cell.figure = h("b");
      cell.append(h("div.with-spark", {}, cell.spark.element, cell.figure));
    },
    show: (cell, topic) => {
      figureCell(cell.figure, format(topic[key]), topic[key], key === "backlog" && isAlarm(topic, "depth") ? "alarm" : "");
      cell.spark.draw(trails.values(topic.name, key));
    },
  });
  const plain = (key, title, format, width, rank, hint) => ({
    key, title, hint, num: true, width, rank, value: (topic) => topic[key], show: (cell, topic) => figureCell(cell, format(topic[key]), topic[key]),
  });
  return [
    {
      key: "name", title: "Topic", value: (topic) => topic.name,
      make: (cell, topic) => {
        cell.pills = h("span.pills");
        cell.append(h("a.name", { href: link("topics", topic.name), title: topic.name }, topic.name), " ", cell.pills);
      },
      show: (cell, topic) => pills(cell.pills, topic),
    },
    sparked("in", "Published/s", "in", rate),
    { ...sparked("out", "Finished/s", "out", rate, "all channels together"), rank: 2 },
    sparked("backlog", "Backlog", "wait", count, "of its fullest channel: waiting, in flight and deferred"),
    plain("in_flight", "In flight", count, "84px", 3, "with consumers, not yet answered"),
    {
      key: "oldest", title: "Oldest", hint: "age of the oldest unfinished message", num: true, width: "92px", rank: 2, value: (topic) => (topic.oldest_ms ? -topic.oldest_ms : null),
      show: (cell, topic) => {
        const age = topic.oldest_ms ? Math.max(0, (model.now() - topic.oldest_ms) / 1000) : topic.oldest_ms;
        figureCell(cell, topic.oldest_ms === 0 ? { text: "–", exact: "everything is finished" } : duration(age >= 1 ? Math.round(age) : age), topic.oldest_ms, isAlarm(topic, "age_s") ? "alarm" : "");
      },
    },
    plain("channel_count", "Channels", count, "92px", 3),
    plain("consumers", "Consumers", count, "104px", 3),
    plain("log_bytes", "On disk", bytes, "92px", 3, "the log, with what is finished and kept"),
  ];
}

function nothing() {
  return empty("No topic yet", "The first message creates a topic:", "echo 'hello' | zsq pub clicks",
    h("span", {}, "Consume it through a channel, which its first consumer creates:"), h("div.command", {}, h("code", {}, "zsq sub clicks archive")));
}
