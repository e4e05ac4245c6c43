// The raised alarms, shown above the topics. Without alarms nothing is shown.

import { h, put, show } from "../base/dom.js";
import { bytes, count, duration, relative } from "../base/format.js";
import { link } from "../base/router.js";

const MOST = 5;

/** Return an alarm as parts of a line: "121k messages waiting (alarm above 100k)". The broker's own
 * alarm reports that its disk is full. */
export function alarmWords({ kind, value, threshold, text }) {
  if (kind === "free_bytes") return ["the disk is full: ", h("b", { title: bytes(value).exact }, bytes(value).text), ` free; the reserve is ${bytes(threshold).text}`];
  // a sentence about a condition, which begins with its place
  if (value === null) return [text.replace(/^((raised|cleared): )?\S+: /, "")];
  if (kind === "held_bytes") return ["unfinished messages hold ", h("b", { title: bytes(value).exact }, bytes(value).text), ` (alarm above ${bytes(threshold).text})`];
  const depth = kind === "depth" || kind === "dead_letters";
  const part = (one) => (depth ? count(one) : duration(one));
  const size = h("b", { title: part(value).exact }, part(value).text);
  return [depth ? [size, kind === "depth" ? " messages waiting " : " dead letters "] : ["oldest unfinished is ", size, " old "], h("span.faint", { title: part(threshold).exact }, `(alarm above ${part(threshold).text})`)];
}

export function alarmPlace({ topic, channel }) {
  if (!topic) return h("span.name", {}, "broker");
  return h("a.name", { href: channel ? link("topics", topic, "channels", channel) : link("topics", topic) }, channel ? `${topic} / ${channel}` : topic);
}

export class RaisedAlarms {
  constructor(model) {
    this.model = model;
    this.list = h("ul.alarm-list");
    this.element = h("section.panel", { "aria-label": "Alarms that are raised", hidden: true }, this.list);
    this.drawn = "";
  }

  update() {
    const raised = this.model.broker.alarms ? (this.model.alarms?.now ?? []).filter((one) => !one.silence) : [];
    const said = JSON.stringify(raised);
    show(this.element, raised.length > 0);
    if (said === this.drawn) return;
    this.drawn = said;
    put(this.list, raised.slice(0, MOST).map((one) => h("li", {}, h("i.dot", { "aria-hidden": "true" }), alarmPlace(one), h("span", {}, alarmWords(one)),
      h("span.when", { title: relative(one.raised_ms).exact }, `since ${relative(one.raised_ms, this.model.now()).text.replace(" ago", "")}`))),
    raised.length > MOST && h("li", {}, h("a.linked", { href: "#/alarms" }, `${raised.length - MOST} more`)));
  }
}
