// Small parts that several pages use: pills of state, values, empty places with a command, and
// heads of pages.

import { explain } from "../base/api.js";
import { add, h, put, setAttr, setClass, setPart, setText, show } from "../base/dom.js";
import { bytes, count, duration } from "../base/format.js";
import { isAlarm, isHealthy } from "../base/model.js";
import { Spark } from "./spark.js";
import { tell } from "./toast.js";

/** Request the data of a page from the broker. If that fails, `failed` shows the reason, and the
 * old data stays. `waiting` is hidden after the first answer. */
export async function asked(failed, signal, ask, waiting = null) {
  try {
    await ask();
    show(failed, false);
  } catch (error) {
    if (signal.aborted) return;
    put(failed, explain(error));
    show(failed, true);
  }
  if (waiting) show(waiting, false);
}

/** Return the text of an alarm: "3,114 messages waiting (alarm above 400)". An alarm about a
 * condition has no number. Its own text begins with its place. */
export function alarmText({ kind, value, threshold, text }) {
  if (value === null) return (text ?? "").replace(/^((raised|cleared): )?\S+: /, "");
  if (kind === "depth") return `${count(value).text} messages waiting (alarm above ${count(threshold).text})`;
  if (kind === "held_bytes") return `unfinished messages hold ${bytes(value).text} (alarm above ${bytes(threshold).text})`;
  if (kind === "dead_letters") return `${count(value).text} dead letters (alarm above ${count(threshold).text})`;
  return `oldest unfinished is ${duration(value).text} old (alarm above ${duration(threshold).text})`;
}

/** Return the special states of a topic or channel as [text, kind, hint]. */
export function states(thing) {
  const found = [];
  if (isAlarm(thing)) found.push(["alarm", "alarm", thing.alarms.map(alarmText).join("; ")]);
  if (!isHealthy(thing)) found.push([thing.health === "starting" ? "starting" : "unwell", thing.health === "starting" ? "warn" : "alarm", thing.health]);
  if (thing.state && thing.state !== "up") found.push([thing.state, "warn", `its processes are ${thing.state}`]);
  if (thing.ordered) found.push(["ordered", "", "it delivers the messages of a key one by one, in their order"]);
  if (thing.paused) found.push(["paused", "held", "no messages are delivered until it is unpaused"]);
  if (thing.closed === "consumers") found.push(["closed", "held", "closed to publishers and to consumers"]);
  else if (thing.closed) found.push(["closed to publishers", "held", "publishers are refused; consumers drain it"]);
  if (thing.name?.endsWith("#ephemeral")) found.push(["in memory", "", "ephemeral: deleted with its last user, and when the broker stops"]);
  if (thing.lost) found.push(["lost messages", "alarm", `${thing.lost} messages were lost to damage on disk`]);
  return found;
}

/** Draw the pills if they have changed. */
export function pills(element, thing) {
  const found = states(thing);
  const said = JSON.stringify(found);
  if (element.said === said) return;
  element.said = said;
  put(element, found.map(([text, kind, hint]) => h(`span.pill${kind && `.${kind}`}`, { title: hint }, text)));
}

/** A list of values: [{key, name, hint, spark}]. `set(key, part, {under, state, unit})` sets one of
 * them. */
export class Figures {
  constructor(list, minor = false) {
    this.parts = new Map();
    this.element = h(`dl.figures${minor ? ".minor" : ""}`);
    for (const { key, name, hint, spark } of list) {
      const value = h("span", {}, "–");
      const unit = h("small");
      const under = minor ? null : h("div.under");
      const line = spark ? new Spark(spark, 96, 30) : null;
      const element = h("div.figure", { "data-figure": key, title: hint }, h("dt", {}, name), h("dd", {}, value, unit), under, line?.element);
      this.parts.set(key, { element, value, unit, under, line });
      add(this.element, element);
    }
  }

  set(key, part, { under = "", state = "", unit = "" } = {}) {
    const found = this.parts.get(key);
    setPart(found.value, part);
    setText(found.unit, unit);
    if (found.under) setText(found.under, under);
    setClass(found.element, "alarm", state === "alarm");
    setClass(found.element, "warn", state === "warn");
  }

  draw(key, values) {
    this.parts.get(key).line?.draw(values);
  }
}

/** Return an empty place, with advice on what to do about it. */
export function empty(title, text, command = "", ...more) {
  return h("div.empty", {}, h("strong", {}, title), text && h("span", {}, text), command && shell(command), more);
}

/** Return what a page of a topic shows until the broker has answered. It appears only if that takes
 * long, so that a change of pages does not flicker. */
export function unanswered() {
  return h("p.note.late", { hidden: true, role: "status" }, "The broker has not answered yet. This page appears when it does.");
}

/** Return a command that can be copied. */
export function shell(command) {
  const copy = h("button.button.small", { type: "button", "aria-label": "Copy the command", on: { click: () => void copied(command) } }, "Copy");
  return h("div.command", {}, h("code", {}, command), copy);
}

export async function copied(text, said = "Copied.") {
  try {
    await navigator.clipboard.writeText(text);
    tell(said);
  } catch {
    tell("The browser does not permit copying. Select the text and copy it.", true);
  }
}

/** Return the head of a page: crumbs [[text, href]], title, pills, actions. */
export function head(title, crumbs = [], actions = []) {
  const marks = h("span.pills");
  const buttons = h("div.actions", {}, actions);
  const element = h("div.head", {},
    h("div.title", {},
      crumbs.length ? h("nav.crumbs", { "aria-label": "Breadcrumbs" }, crumbs.map(([text, href], at) => [at ? h("span", { "aria-hidden": "true" }, "/") : null, h("a", { href }, text)])) : null,
      h("div.title-line", {}, h("h1", {}, title), marks)),
    buttons);
  return { element, marks, buttons };
}

export function button(text, act, { kind = "", title = null, disabled = false } = {}) {
  return h(`button.button${kind && `.${kind}`}`, { type: "button", title, disabled, on: { click: act } }, text);
}

/** Enable or disable an action. If it is not permitted, its hint names the missing permission. */
export function permit(element, permitted, need) {
  element.disabled = !permitted;
  if (!permitted) setAttr(element, "title", `Your token does not permit this. It needs ${need}.`);
  else if (element.title.startsWith("Your token")) setAttr(element, "title", null);
}

/** Return a switch between a few choices. It calls `changed(value)`. */
export function segment(label, options, chosen, changed) {
  const element = h("div.segment", { role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const one = h("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
    one.addEventListener("click", () => {
      for (const other of element.children) setAttr(other, "aria-pressed", String(other === one));
      changed(value);
    });
    element.append(one);
  }
  return element;
}

/** Set a cell to a value. Zero is shown faintly, so that other values stand out. */
export function figureCell(cell, part, value, state = "") {
  setPart(cell, part);
  setClass(cell, "zero", value === 0 || value === null || value === undefined);
  setClass(cell, "alarm", state === "alarm");
  setClass(cell, "warn", state === "warn");
}

/** Mark the tab that is shown. If the row of tabs is wider than the screen, scroll to it. */
export function markTab(links, key) {
  for (const one of links) {
    setAttr(one.element, "aria-current", one.key === key ? "page" : null);
    if (one.key === key && one.element.parentElement) one.element.parentElement.scrollLeft = one.element.offsetLeft - 48;
  }
}

/** Return the problems of a topic or channel as one line, or "". */
export function troubles(thing) {
  const alarms = (thing.alarms ?? []).map((one) => `Alarm${one.channel && one.channel !== thing.name ? ` of ${one.channel}` : ""}: ${alarmText(one)}.`);
  return [isHealthy(thing) ? "" : `Health: ${thing.health}.`, ...alarms].filter(Boolean).join(" ");
}
