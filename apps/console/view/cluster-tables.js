// The columns of the cluster's tables, and the commands that hand over. All names and addresses
// come from other brokers, so they are only ever set as text.

import { h, put, setClass, setText } from "../base/dom.js";
import { count, duration, UNKNOWN } from "../base/format.js";
import { link } from "../base/router.js";
import { figureCell, shell } from "./parts.js";

/** Each role as [text, kind of pill, hint]. */
const ROLES = {
  primary: ["primary", "", "it answers, and is the primary"],
  standby: ["standby", "warn", "a standby answers, but no primary; it takes over by itself after its patience"],
  fenced: ["fenced", "alarm", "another broker has taken over from it, so it stores nothing any more"],
  refused: ["not permitted", "warn", "it does not permit this broker to ask: see docs/cluster.md"],
  other: ["another broker", "warn", "another broker answers at this address"],
  forgotten: ["forgotten", "", "it is gone for good, and its parts are at other brokers"],
  away: ["not answering", "alarm", "no answer in time"],
};

function role(one) {
  return ROLES[one] ?? [String(one), "warn", ""];
}

/** A role as a pill. A standby of a primary that answers is no reason to warn. */
function pill(name, why, quiet = false) {
  const [text, kind, hint] = role(name);
  return h(`span.pill${kind && !quiet ? `.${kind}` : ""}`, { title: [hint, why].filter(Boolean).join(": ") }, text);
}

/** Draw nodes in a cell only if what they show has changed. */
function drawn(cell, shown, make) {
  const said = JSON.stringify(shown);
  if (cell.said === said) return;
  cell.said = said;
  put(cell, make());
}

export function brokerColumns() {
  return [
    { key: "number", title: "Broker", width: "116px", value: (one) => one.number, show: (cell, one) => drawn(cell, [one.number, one.me], () => [h("b", {}, one.number), one.me ? [" ", h("span.quiet", {}, "this one")] : null]) },
    {
      key: "role", title: "Role", width: "132px", value: (one) => one.role,
      show: (cell, one) => drawn(cell, [one.role, one.why, one.draining], () => [pill(one.role, one.why), one.draining ? [" ", h("span.pill.warn", { title: "it gives its parts to other brokers, and takes no new ones" }, "draining")] : null]),
    },
    {
      key: "places", title: "Addresses", hint: "with the role of each address, where it is not that of the broker",
      show: (cell, one) => {
        const places = one.places.length ? one.places : one.addresses.map((url) => ({ url, role: one.role, why: "" }));
        setClass(cell, "wrapped", true);
        drawn(cell, [places, one.role], () => places.map(({ url, role: found, why }) => h("div.place", {}, h("code", { title: url }, url), found === one.role ? null : [" ", pill(found, why, found === "standby" && one.state === "up")])));
      },
    },
    number("epoch", "Epoch", "72px", 3, "takeovers and starts of a primary so far"),
    {
      key: "lag_s", title: "Lag", num: true, width: "92px", hint: "age of the oldest change that the bucket does not have", value: (one) => one.lag_s,
      show: (cell, one) => figureCell(cell, duration(one.lag_s), one.lag_s),
    },
    number("standbys", "Standbys", "92px", 2, "standbys that follow it"),
    number("parts", "Parts", "72px", 2, "of all topics"),
    {
      key: "health", title: "Health", width: "132px", rank: 2, value: (one) => one.health,
      show: (cell, one) => {
        figureCell(cell, one.health || UNKNOWN, one.health || null, one.health && one.health !== "OK" ? "alarm" : "");
        cell.title = one.health;
      },
    },
  ];
}

export function topicColumns() {
  return [
    { key: "topic", title: "Topic", value: (one) => one.topic, make: (cell, one) => { cell.append(h("a.name", { href: link("cluster", one.topic), title: one.topic }, one.topic)); } },
    {
      key: "parts", title: "Parts", width: "150px", num: true, value: (one) => one.parts.length,
      show: (cell, one) => figureCell(cell, one.answered === one.parts.length ? count(one.answered) : { text: `${one.answered} of ${one.parts.length}`, exact: `${one.answered} of ${one.parts.length} parts say what they hold` }, one.parts.length, one.answered === one.parts.length ? "" : "warn"),
    },
    number("closed_count", "Closed", "84px", 3, "parts that take no more messages"),
    number("messages", "Messages", "116px", 1, "kept by the parts whose broker answers"),
    number("backlog", "Backlog", "116px", 1, "of its fullest channel, all parts together: waiting, in flight and deferred"),
  ];
}

/** `mine()` returns the number of the broker of this console, which shows its own parts only. */
export function partColumns(mine) {
  return [
    {
      key: "name", title: "Part", value: (one) => one.name,
      show: (cell, one) => {
        setClass(cell, "mono", true);
        cell.title = one.name;
        const isHere = one.broker === mine();
        drawn(cell, [one.name, isHere], () => (isHere ? h("a.name", { href: link("topics", one.name) }, one.name) : one.name));
      },
    },
    { key: "broker", title: "Broker", num: true, width: "84px", value: (one) => one.broker, show: (cell, one) => setText(cell, one.broker) },
    {
      key: "state", title: "State", width: "150px", value: (one) => `${one.state} ${one.closed} ${one.to}`,
      show: (cell, one) => {
        const moves = one.to === null ? "" : `, moves to ${one.to}`;
        const shown = `${one.state === "away" ? "not answering" : one.state}, ${one.closed ? "closed" : "open"}${moves}`;
        figureCell(cell, shown, shown, one.state === "up" || one.state === "asleep" ? "" : "warn");
        cell.title = shown;
      },
    },
    number("start", "Start", "100px", 3, "the oldest offset that is kept"),
    number("head", "Head", "100px", 2, "the next offset"),
    number("backlog", "Backlog", "100px", 1, "of its fullest channel: waiting, in flight and deferred"),
    {
      key: "channels", title: "Channels", rank: 2, hint: "with the backlog of each",
      show: (cell, one) => {
        const shown = Object.entries(one.channels).map(([name, depth]) => `${name} ${count(depth).text}`).join(", ");
        figureCell(cell, shown || UNKNOWN, shown || null);
        cell.title = shown;
      },
    },
  ];
}

function number(key, title, width, rank, hint) {
  return { key, title, hint, num: true, width, rank: rank > 1 ? rank : undefined, value: (one) => one[key], show: (cell, one) => figureCell(cell, count(one[key]), one[key]) };
}

/** For each broker with a standby: what hands over, and what it does. */
export function handovers(brokers) {
  return brokers.filter((one) => one.handover).map((one) => h("section.panel", { "aria-label": `Hand over broker ${one.number}` },
    h("header", {}, h("h2", {}, `Hand over broker ${one.number}`)),
    h("div.body", {}, h("p", {}, "A standby follows this broker. This command lets it take over at once, for example before you restart the machine of the primary. The primary ships everything first, so nothing is lost, and then becomes the standby. The command needs admin of all topics."), shell(one.handover))));
}
