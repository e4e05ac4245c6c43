// Page of all channels of all topics in one table. It shows where the backlog is and which channels
// have no consumer.

import { h, setText, show } from "../base/dom.js";
import { plural } from "../base/format.js";
import { isAlarm } from "../base/model.js";
import { amend } from "../base/router.js";
import { channelColumns, channelStates } from "../view/channel-table.js";
import { empty } from "../view/parts.js";
import { RowSelection } from "../view/row-selection.js";
import { filterField, skeleton, stateField, Table } from "../view/table.js";

export function channelsPage({ model, query }) {
  const selection = new RowSelection("channel", () => table);
  const table = new Table({
    label: "Channels", columns: [selection.column, ...channelColumns(model, { topics: true })], id: (channel) => `${channel.topic}/${channel.name}`,
    words: (channel) => `${channel.topic}/${channel.name} ${channel.paused ? "paused" : ""} ${channel.health} ${isAlarm(channel) ? "alarm" : ""} ${channel.consumers ? "" : "no consumers"}`,
    sort: ["depth", -1], query, empty: empty("No channel yet", "A consumer creates its channel:", "zsq sub clicks archive"),
  });
  const number = h("span.quiet", { role: "status" });
  const filter = filterField(() => table, "Filter channels", (text) => {
    amend({ q: text });
    tell();
  });
  const states = stateField(() => table, channelStates(model), () => tell());
  const tell = () => setText(number, table.shown === table.size ? plural(table.size, "channel") : `${table.shown} of ${plural(table.size, "channel")}`);
  const waiting = skeleton(10);
  show(table.element, false);
  const element = h("div.stack", {}, h("div.toolbar", {}, h("h1", {}, "Channels"), filter, states.element, number), selection.bar, h("section.panel", { "aria-label": "Channels" }, waiting, table.element));
  let first = true;
  return {
    element, title: "Channels", up: "#/", follow: { channels: 1 },
    update() {
      if (!model.full || !model.channelsToo) return;
      show(waiting, false);
      show(table.element, true);
      table.update([...model.topics.values()].flatMap((topic) => [...(topic.channels?.values() ?? [])]));
      if (first && query.q) {
        filter.querySelector("input").value = query.q;
        table.filter(query.q);
      }
      if (first) states.choose(query.state);
      first = false;
      selection.update();
      tell();
    },
    tick: () => table.refresh(),
    close: () => table.close(),
    stays: () => true,
  };
}
