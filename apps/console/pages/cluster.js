// Pages of the cluster: its brokers, its topics with parts, and one topic with its parts. The
// broker asks all other brokers for each answer, so a page asks again only after an answer.

import { every, get, Refused } from "../base/api.js";
import { h, put, setText, show } from "../base/dom.js";
import { count, plural } from "../base/format.js";
import { link } from "../base/router.js";
import { brokerColumns, handovers, partColumns, topicColumns } from "../view/cluster-tables.js";
import { asked, empty, Figures, figureCell, head } from "../view/parts.js";
import { filterField, skeleton, Table, tablePanel } from "../view/table.js";

const PAUSE_MS = 3000;
const ALONE = "zsq serve --data-dir DIR --bucket s3://BUCKET/ONE --cluster s3://BUCKET";
const FIGURES = [
  { key: "parts", name: "Parts" }, { key: "brokers", name: "Brokers" }, { key: "messages", name: "Messages kept", hint: "of the parts whose broker answers" },
  { key: "backlog", name: "Backlog", hint: "of its fullest channel, all parts together: waiting, in flight and deferred" },
];

/** Return the number of the broker that answers. */
function mineOf(found) {
  return found.brokers.find((one) => one.me)?.number;
}

export function clusterPage({ query, signal }) {
  let mine;
  const brokers = new Table({
    label: "Brokers", columns: brokerColumns(), id: (one) => String(one.number), words: (one) => `${one.number} ${one.addresses.join(" ")} ${one.role}`,
    sort: ["number", 1], empty: empty("No broker yet", "The first broker is shown when it has joined the cluster."),
  });
  const topics = new Table({
    label: "Topics with parts", columns: topicColumns(), id: (one) => one.uuid, words: (one) => one.topic, sort: ["topic", 1],
    empty: empty("No topic with parts yet", "Create one:", "zsq topic create clicks --parts 4"),
  });
  const parts = new Table({
    label: "Parts", columns: partColumns(() => mine), id: (one) => one.name, words: (one) => `${one.name} ${one.broker} ${one.state} ${one.closed ? "closed" : "open"}`,
    sort: ["name", 1], query, empty: empty("No parts yet", ""),
  });
  const failed = h("p.note.warn", { hidden: true, role: "status" });
  const trouble = h("p.note.alarm", { hidden: true, role: "status" });
  const balancing = h("p.note", { hidden: true, role: "status" });
  const alone = h("section.panel", { "aria-label": "No cluster", hidden: true },
    empty("This broker belongs to no cluster", "Brokers of a cluster share a bucket, and a topic may have parts at several of them. A standby takes over when its primary is gone. To begin a cluster:", ALONE));
  const waiting = skeleton(4);
  const number = h("span.quiet", { role: "status" });
  const place = h("div.stack");
  const ofBrokers = h("section.panel", { "aria-label": "Brokers" }, h("header", {}, h("h2", {}, "Brokers"), number), waiting, brokers.element);
  const ofTopics = tablePanel("Topics with parts", topics);
  const ofParts = tablePanel("Parts", parts, filterField(() => parts, "Filter parts"));
  for (const one of [ofTopics, ofParts, brokers.element]) show(one, false);
  let drawn = "";
  void every(PAUSE_MS, () => asked(failed, signal, async () => {
    const found = await get("/api/cluster", {}, signal);
    const inCluster = found.is_cluster || found.topics.length > 0; // a broker alone may have topics with parts
    mine = mineOf(found);
    show(alone, !inCluster);
    show(brokers.element, true);
    show(ofTopics, inCluster);
    show(ofParts, inCluster);
    const away = found.brokers.filter((one) => one.state !== "up" && !one.gone).length;
    const moves = (found.moving ?? 0) + (found.planned ?? 0);
    show(balancing, moves > 0 || Boolean(found.auto?.is_on));
    setText(balancing, `${moves ? `Balancing: ${found.moving} of ${plural(moves, "part")} on the move.` : "The cluster is balanced."}${found.auto?.is_on ? " The brokers balance their parts by themselves." : ""}`);
    setText(number, `${plural(found.brokers.length, "broker")}${away ? `, ${away} without a primary that answers` : ""}`);
    show(trouble, Boolean(found.trouble));
    setText(trouble, found.trouble ? `Trouble: ${found.trouble}.` : "");
    brokers.update(found.brokers);
    topics.update(found.topics);
    parts.update(found.topics.flatMap((topic) => topic.parts));
    const said = JSON.stringify(found.brokers.map((one) => one.handover));
    if (said !== drawn) put(place, handovers(found.brokers)); // a command that is being copied stays
    drawn = said;
  }, waiting), signal);
  return {
    element: h("div.stack", {}, h("h1", {}, "Cluster"), failed, trouble, balancing, alone, ofBrokers, place, ofTopics, ofParts),
    title: "Cluster", up: "#/", follow: {}, stays: () => true,
    close: () => { for (const one of [brokers, topics, parts]) one.close(); },
  };
}

/** The page of a topic with parts. The values are the sums of all parts whose broker answers. */
export function partsPage({ params, query, signal }) {
  const name = params.topic;
  let mine;
  const top = head(name, [["Cluster", "#/cluster"]]);
  const figures = new Figures(FIGURES);
  const parts = new Table({ label: "Parts", columns: partColumns(() => mine), id: (one) => one.name, sort: ["name", 1], empty: empty("No parts", "") });
  const channels = new Table({
    label: "Channels", columns: channelColumns(), id: (one) => one.name, sort: ["depth", -1], query,
    empty: empty("No channel yet", "A consumer creates its channel in all parts:", `zsq sub ${name} archive`),
  });
  const failed = h("p.note.warn", { hidden: true, role: "status" });
  const missing = h("div.panel", { hidden: true }, empty(`There is no topic ${name} with parts`, "It was deleted, it has another name, or your token does not permit you to see it.", "", h("a.linked", { href: "#/cluster" }, "The cluster")));
  const waiting = skeleton(4);
  const content = h("div.stack", { hidden: true }, h("section.panel", { "aria-label": "Figures" }, figures.element), tablePanel("Parts", parts), tablePanel("Channels", channels));
  void every(PAUSE_MS, () => asked(failed, signal, async () => {
    let found;
    try {
      found = await get("/api/cluster", { topic: name }, signal);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      show(missing, true);
      show(content, false);
      return;
    }
    const [topic] = found.topics;
    mine = mineOf(found);
    show(missing, false);
    show(content, true);
    parts.update(topic.parts);
    channels.update(Object.entries(topic.channels).map(([channel, depth]) => ({ name: channel, depth })));
    const partial = topic.answered < topic.parts.length ? `of ${topic.answered} parts` : "";
    figures.set("parts", count(topic.parts.length), { under: topic.closed_count ? `${topic.closed_count} closed` : "" });
    figures.set("brokers", count(new Set(topic.parts.map((one) => one.broker)).size));
    figures.set("messages", count(topic.messages), { under: partial, state: partial ? "warn" : "" });
    figures.set("backlog", count(topic.backlog), { under: partial, state: partial ? "warn" : "" });
  }, waiting), signal);
  return {
    element: h("div.stack", {}, top.element, failed, waiting, missing, content), title: name, up: "#/cluster", follow: {},
    close: () => { for (const one of [parts, channels]) one.close(); },
    stays: (next) => next.topic === name,
  };
}

/** Go to the page of a topic with parts if the cluster has one of this name. Return true if so. */
export async function goToParts(name, signal) {
  try {
    await get("/api/cluster", { topic: name }, signal);
  } catch (error) {
    if (error instanceof Refused || signal.aborted) return false;
    throw error;
  }
  if (!signal.aborted) location.replace(link("cluster", name));
  return true;
}

function channelColumns() {
  return [
    { key: "name", title: "Channel", value: (one) => one.name, show: (cell, one) => { setText(cell, one.name); cell.title = one.name; } },
    { key: "depth", title: "Backlog", num: true, width: "160px", hint: "of all parts together: waiting, in flight and deferred", value: (one) => one.depth, show: (cell, one) => figureCell(cell, count(one.depth), one.depth) },
  ];
}
