// Page of schedules: when each is due next, what it has done, and why it cannot publish.

import { every, get, post } from "../base/api.js";
import { h, setText, show } from "../base/dom.js";
import { count, moment, relative } from "../base/format.js";
import { may } from "../base/model.js";
import { link } from "../base/router.js";
import { confirm } from "../view/dialog.js";
import { changeSchedule, createSchedule, runSchedule } from "../view/schedule-actions.js";
import { asked, button, empty, figureCell, permit } from "../view/parts.js";
import { filterField, skeleton, Table } from "../view/table.js";
import { tell } from "../view/toast.js";

const MS = 3000;
const KINDS = { failing: "alarm", invalid: "alarm", paused: "held" };
const POLICIES = { one: "the latest missed due time is published", all: "all missed due times are published", skip: "missed due times are left out" };

export function schedulesPage({ model, query, signal }) {
  const failed = h("p.note.warn", { hidden: true });
  const waiting = skeleton(4);
  const change = async (one, what, done) => {
    try {
      await post(`/api/schedule/${what}`, { topic: one.topic }, { name: one.name });
      tell(done);
    } catch (error) {
      tell(error.message, true);
    }
    void load();
  };
  const remove = async (one) => {
    const answer = await confirm({
      title: `Remove the schedule ${one.name} of ${one.topic}?`, text: `Nothing is published to ${one.topic} at its due times any more. Messages that it has published stay. This cannot be undone.`, submit: "Remove the schedule",
      act: () => post("/api/schedule/remove", { topic: one.topic }, { name: one.name }),
    });
    if (answer) tell("Removed.");
    void load();
  };
  const table = new Table({
    label: "Schedules", columns: columns(model, change, remove, (act) => void act.then(load)), id: (one) => `${one.topic}/${one.name}`, sort: ["next", 1], query,
    words: (one) => `${one.name} ${one.topic} ${one.cron} ${one.state}`,
    empty: empty("No schedule yet", "The broker publishes a message at each due time of a schedule:", "zsq schedule add nightly '0 3 * * *' reports 'daily report'"),
  });
  show(table.element, false);
  const load = () => asked(failed, signal, async () => {
    const found = await get("/api/schedules", {}, signal);
    show(table.element, true);
    table.update(found.schedules);
  }, waiting);
  void every(MS, load, signal);
  return {
    element: h("div.stack", {}, h("div.toolbar", {}, h("h1", {}, "Schedules"), filterField(() => table, "Filter"), h("div.end", {}, button("New schedule", () => void createSchedule([...model.topics.keys()]).then(load)))), failed, h("section.panel", { "aria-label": "Schedules" }, waiting, table.element)),
    title: "Schedules", up: "#/", follow: {}, tick: () => table.refresh(), close: () => table.close(), stays: () => true,
  };
}

function columns(model, change, remove, after) {
  return [
    { key: "name", title: "Schedule", value: (one) => one.name, show: (cell, one) => { setText(cell, one.name); cell.title = one.name; } },
    {
      key: "topic", title: "Topic", rank: 1, value: (one) => one.topic,
      make: (cell) => { cell.link = h("a.linked", {}); cell.append(cell.link); },
      show: (cell, one) => { setText(cell.link, one.topic); cell.link.href = link("topics", one.topic); },
    },
    { key: "cron", title: "Cron", width: "130px", rank: 2, value: (one) => one.cron, show: (cell, one) => { setText(cell, one.cron); cell.classList.add("mono"); cell.title = `${one.timezone}; ${POLICIES[one.missed] ?? one.missed}`; } },
    { key: "zone", title: "Time zone", width: "120px", rank: 3, value: (one) => one.timezone, show: (cell, one) => setText(cell, one.timezone) },
    {
      key: "state", title: "State", width: "90px", value: (one) => one.state,
      show: (cell, one) => { setText(cell, one.state); cell.title = one.trouble; cell.classList.toggle("alarm", KINDS[one.state] === "alarm" || Boolean(one.trouble)); },
    },
    { key: "next", title: "Next due", width: "130px", value: (one) => one.next_due_ms || Infinity, show: (cell, one) => figureCell(cell, one.next_due_ms ? relative(one.next_due_ms, model.now()) : { text: "–", exact: "" }, one.next_due_ms) },
    { key: "last", title: "Last published", width: "160px", rank: 3, value: (one) => one.last_due_ms, show: (cell, one) => figureCell(cell, one.last_due_ms ? moment(one.last_due_ms) : { text: "–", exact: "" }, one.last_due_ms) },
    { key: "published", title: "Published", hint: "since the broker started", num: true, width: "96px", rank: 3, value: (one) => one.published_count, show: (cell, one) => figureCell(cell, count(one.published_count), one.published_count) },
    { key: "missed", title: "Missed", hint: "due times that were left out, since the broker started", num: true, width: "80px", rank: 2, value: (one) => one.missed_count, show: (cell, one) => figureCell(cell, count(one.missed_count), one.missed_count, one.missed_count ? "warn" : "") },
    {
      key: "act", title: "", width: "286px", num: true,
      make: (cell, one) => {
        cell.one = one;
        cell.pause = button("Pause", () => void (cell.one.state === "paused" ? change(cell.one, "resume", "Resumed.") : change(cell.one, "pause", "Paused.")), { kind: "small" });
        cell.remove = button("Remove", () => void remove(cell.one), { kind: "small" });
        cell.run = button("Run now", () => after(runSchedule(cell.one)), { kind: "small" });
        cell.edit = button("Edit", () => after(changeSchedule(cell.one)), { kind: "small" });
        cell.append(h("span.row-actions", {}, cell.run, cell.edit, cell.pause, cell.remove));
      },
      show: (cell, one) => {
        cell.one = one;
        setText(cell.pause, one.state === "paused" ? "Resume" : "Pause");
        for (const each of [cell.pause, cell.remove]) permit(each, may(one, "a"), "admin on this topic");
        for (const each of [cell.run, cell.edit]) permit(each, may(one, "a") && may(one, "p"), "admin and publish on this topic");
      },
    },
  ];
}
