// Tab of a channel's consumers, with the messages that each one holds.

import { post } from "../base/api.js";
import { h, put, show } from "../base/dom.js";
import { count, duration, moment, rate, relative } from "../base/format.js";
import { may } from "../base/model.js";
import { confirm } from "../view/dialog.js";
import { button, empty, figureCell, permit } from "../view/parts.js";
import { Table } from "../view/table.js";
import { tell } from "../view/toast.js";

export function consumersTab({ topic, channel, model, query }) {
  const failed = h("p.note.warn", { hidden: true });
  const table = new Table({
    label: `Consumers of ${channel}`, query, columns: columns(model, topic, channel), id: (one) => `${one.name} ${one.address} ${one.connected_ms}`, words: (one) => `${one.name} ${one.address} ${one.agent}`, sort: ["name", 1],
    empty: empty("No consumer is connected", "Messages wait for a consumer:", `zsq sub ${topic} ${channel}`),
  });
  return {
    element: h("div.stack", {}, failed, h("section.panel", { "aria-label": "Consumers" }, table.element)),
    fresh(found) {
      show(failed, false);
      table.update(found.clients ?? []);
    },
    failed(text) {
      put(failed, text);
      show(failed, true);
    },
    close: () => table.close(),
  };
}

async function disconnect(topic, channel, one) {
  const done = await confirm({
    title: `Disconnect ${one.name} of ${topic}/${channel}?`, submit: "Disconnect",
    text: "Its subscription ends, and other consumers get the messages that it holds at once. A client that still runs subscribes again by itself. To keep it away, stop it, or take its permission. All consumers with this name are disconnected.",
    act: () => post("/api/channel/disconnect", { topic, channel }, { consumer: one.nsq ? `${one.name.slice(0, 64)} ${one.address}` : one.name }),
  });
  if (done) tell(done.count === 1 ? `${one.name} is disconnected.` : `${done.count} consumers are disconnected.`);
}

function backoff(seconds) {
  if (seconds === null || seconds === undefined) return "";
  return seconds ? `backing off, next probe in ${Math.ceil(seconds)} s` : "backing off, probing now";
}

function columns(model, topic, channel) {
  const plain = (key, title, width, rank, hint, format = count, warn = false) => ({
    key, title, hint: hint ?? "since it connected", num: true, width, rank, value: (one) => one[key], show: (cell, one) => figureCell(cell, format(one[key]), one[key], warn && one[key] ? "warn" : ""),
  });
  return [
    {
      key: "name", title: "Consumer", value: (one) => one.name,
      show: (cell, one) => {
        const marks = [one.nsq && "NSQ", one.tls && "TLS", one.sample_rate ? `${one.sample_rate} % sample` : "", backoff(one.backoff_s)].filter(Boolean).join(", ");
        const said = [one.name, marks, one.agent, one.address].join("\n");
        if (cell.said === said) return;
        cell.said = said;
        // Only consumers of NSQ's protocol have an address.
        put(cell, h("span.name", { title: [one.name, one.agent].filter(Boolean).join("\n") }, one.name || "(no name)"), marks && [" ", h("span.pill", {}, marks)], one.address && [" ", h("span.faint", {}, one.address)]);
      },
    },
    { ...plain("in_flight", "Holds", "104px", undefined, "messages in flight, of its ready count"), show: (cell, one) => figureCell(cell, { text: `${count(one.in_flight).text} / ${count(one.ready).text}`, exact: `${one.in_flight} in flight, ready for ${one.ready}` }, one.in_flight) },
    plain("out", "Finished/s", "92px", undefined, "over the last minute", rate),
    plain("finished", "Finished", "92px", 2),
    plain("requeued", "Requeued", "88px", 3),
    plain("timed_out", "Timed out", "88px", 2, "deliveries not answered in time, since it connected", count, true),
    { key: "p99", title: "Median, 99 %", hint: "from publish to finish, ten minutes", num: true, width: "140px", rank: 3, value: (one) => one.p99_ms, show: (cell, one) => figureCell(cell, one.p50_ms === null || one.p50_ms === undefined ? duration(null) : { text: `${duration(one.p50_ms / 1000).text}, ${duration(one.p99_ms / 1000).text}`, exact: `${one.p50_ms} ms, ${one.p99_ms} ms` }, one.p99_ms) },
    { key: "since", title: "Connected", num: true, width: "112px", rank: 2, value: (one) => -one.connected_ms, show: (cell, one) => figureCell(cell, { text: relative(one.connected_ms, model.now()).text, exact: moment(one.connected_ms).exact }, 1) },
    {
      key: "act", title: "", width: "112px", num: true,
      make: (cell, one) => {
        cell.end = button("Disconnect", () => void disconnect(topic, channel, one), { kind: "small" });
        cell.append(cell.end);
      },
      show: (cell, one) => permit(cell.end, may(model.channel(topic, channel), "a") && one.name !== "", "admin on this topic, and the consumer needs a name"),
    },
  ];
}
