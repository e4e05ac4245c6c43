// Tab of a topic's channels, with their backlogs and rates.

import { explain, get } from "../base/api.js";
import { h } from "../base/dom.js";
import { may } from "../base/model.js";
import { amend } from "../base/router.js";
import { Trails } from "../base/trails.js";
import { createChannel } from "../view/channel-actions.js";
import { channelColumns, channelStates } from "../view/channel-table.js";
import { button, empty, permit } from "../view/parts.js";
import { RowSelection } from "../view/row-selection.js";
import { filterField, stateField, Table } from "../view/table.js";

export function channelsTab({ topic, model, query, signal }) {
  const trails = new Trails();
  const selection = new RowSelection("channel", () => table);
  const table = new Table({
    label: `Channels of ${topic}`, columns: [selection.column, ...channelColumns(model, { trails })], id: (channel) => channel.name, words: (channel) => `${channel.name} ${channel.paused ? "paused" : ""} ${channel.health}`,
    sort: ["name", 1], query, empty: empty("No channel yet", "Published messages wait for the first channel. A consumer creates its channel:", `zsq sub ${topic} archive`),
  });
  const create = button("New channel", () => void createChannel(topic));
  const filter = filterField(() => table, "Filter channels", (text) => amend({ q: text }));
  const states = stateField(() => table, channelStates(model));
  let first = true;
  const element = h("div.stack", {}, h("div.toolbar", {}, filter, states.element, h("div.end", {}, create)), selection.bar, h("section.panel", { "aria-label": "Channels" }, table.element));
  let loading = false;
  const load = async () => {
    if (loading) return;
    loading = true;
    try {
      const found = await get("/api/histories", { topic, span: "5m", points: 60, series: "depth,out" }, signal);
      trails.load(found.channels ?? {}, found.step_s, found.end_ms);
      table.refresh();
    } catch (error) {
      if (!signal.aborted) console.warn(explain(error));
    } finally {
      loading = false;
    }
  };
  void load();
  return {
    element,
    update() {
      table.update(model.topic(topic).channels?.values() ?? []);
      if (first && query.q) {
        filter.querySelector("input").value = query.q;
        table.filter(query.q);
      }
      if (first) states.choose(query.state);
      first = false;
      selection.update();
      permit(create, may(model.topic(topic), "a"), "admin on this topic");
    },
    tick() {
      for (const channel of model.topic(topic).channels?.values() ?? []) trails.sample(channel.name, channel);
      if (trails.ready && !trails.advance(model.now())) void load();
      table.refresh();
    },
    close: () => table.close(),
  };
}
