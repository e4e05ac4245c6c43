// Page of alarms: the raised alarms, the recent events, and the state of the receivers.

import { every, get } from "../base/api.js";
import { h, put, show } from "../base/dom.js";
import { count, relative } from "../base/format.js";
import { alarmPlace, alarmWords } from "../view/raised.js";
import { silenceButtons, silenceText } from "../view/silence.js";
import { asked, empty, figureCell } from "../view/parts.js";
import { skeleton, Table } from "../view/table.js";

export function alarmsPage({ model, query, signal }) {
  const raised = h("ul.alarm-list");
  const recent = h("ul.alarm-list");
  const failed = h("p.note.warn", { hidden: true });
  const calm = empty("No alarm is raised", "Set the depth or age of a channel's backlog that raises an alarm:", "zsq channel set clicks archive --alarm-depth 100000 --alarm-age 15m");
  const quiet = empty("No recent alarms", "");
  const waiting = skeleton(2);
  const receivers = new Table({
    label: "Receivers", id: (one) => one.name, sort: ["name", 1], query,
    empty: empty("No receivers", "Receivers of alarms are options of the broker:", "zsq serve --data-dir DIR --alarm-depth 100000 --alarm-webhook https://chat.example.org/hook"),
    columns: [
      { key: "name", title: "Receiver", value: (one) => one.name, show: (cell, one) => { cell.textContent = one.name; cell.title = one.name; } },
      figure("sent_count", "Sent"), figure("waiting", "Waiting"), figure("failed_count", "Given up", "alarm"),
      { key: "trouble", title: "Last error", width: "34%", show: (cell, one) => { cell.textContent = one.trouble || "–"; cell.title = one.trouble || ""; cell.classList.toggle("alarm", Boolean(one.trouble)); } },
    ],
  });
  const section = (title, ...inner) => h("section.panel", { "aria-label": title }, h("header", {}, h("h2", {}, title)), inner);
  const told = section("Receivers", receivers.element);
  for (const one of [calm, quiet, told]) show(one, false);
  let drawn = "";
  const draw = (found) => {
    show(waiting, false);
    // the texts contain how long ago each alarm was raised
    const minute = Math.floor(model.now() / 10_000);
    const said = JSON.stringify([found.now, found.recent, minute]);
    receivers.update(found.receivers ?? []);
    show(told, Boolean(found.receivers));
    if (said === drawn) return;
    drawn = said;
    put(raised, (found.now ?? []).map((one) => line(one, "", one.raised_ms, model, h("span.quiet", {}, silenceText(one, model)), h("span.row-actions", {}, silenceButtons(one, () => void load())))));
    put(recent, [...(found.recent ?? [])].sort((a, b) => b.time_ms - a.time_ms).map((one) => line(one, one.event, one.time_ms, model)));
    show(calm, !(found.now ?? []).length);
    show(quiet, !(found.recent ?? []).length);
  };
  const load = () => asked(failed, signal, async () => {
    model.take("alarms", await get("/api/alarms", {}, signal));
    draw(model.alarms);
  });
  void every(5000, load, signal);
  return {
    element: h("div.stack", {}, h("h1", {}, "Alarms"), failed, section("Raised now", waiting, raised, calm), section("Recent", recent, quiet), told),
    title: "Alarms", up: "#/", follow: {}, update: () => model.alarms && draw(model.alarms), close: () => receivers.close(), stays: () => true,
  };
}

function figure(key, title, state = "") {
  return { key, title, hint: key === "waiting" ? "alarms that it has not received yet" : "since the broker started", num: true, width: "96px", value: (one) => one[key], show: (cell, one) => figureCell(cell, count(one[key]), one[key], one[key] ? state : "") };
}

function line(one, event, ms, model, ...more) {
  const when = relative(ms, model.now());
  return h("li", {}, h(`i.dot${event === "cleared" ? ".cleared" : ""}`, { "aria-hidden": "true" }), event && h("span.quiet", {}, event), alarmPlace(one), h("span", {}, alarmWords(one)), h("span.when", { title: when.exact }, when.text), more);
}
