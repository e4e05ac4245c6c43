// Keyboard control: single keys, and sequences that begin with g. None of them works while the user
// types in a field.

import { go } from "../base/router.js";
import { h } from "../base/dom.js";
import { dialog } from "./dialog.js";

const GO = { t: ["#/", "Topics"], c: ["#/channels", "Channels"], s: ["#/schedules", "Schedules"], a: ["#/alarms", "Alarms"], p: ["#/processes", "Processes"], l: ["#/audit", "Audit log"], k: ["#/cluster", "Cluster"] };
const SEQUENCE_MS = 1500;

const HELP = [
  [["j", "↓"], "next row"], [["k", "↑"], "previous row"], [["Enter"], "open the row"], [["x"], "select the row"], [["/"], "filter"], [["Esc"], "clear the filter, close a dialog, or go one page up"],
  ...Object.entries(GO).map(([key, [, name]]) => [["g", key], `go to ${name}`]), [["["], "previous tab"], [["]"], "next tab"], [["d"], "theme: light, dark, or system setting"], [["?"], "this list"],
];

export function help() {
  const rows = HELP.map(([keys, text]) => [h("dt", {}, keys.map((key) => [h("kbd", {}, key), " "])), h("dd", {}, text)]);
  return dialog({ title: "Keyboard", fields: [h("dl.keys-list", {}, rows)], submit: "Close", cancel: "" });
}

/** Listen for keys. `up()` goes one page up, and `theme()` switches to the next theme. */
export function listen({ up, theme }) {
  let began = 0; // the time at which g was pressed
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches?.("input:not([type=checkbox], [type=radio]), textarea, select");
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      if (event.key === "Enter" && "filter" in event.target.dataset) move(1, true);
      return;
    }
    const sequence = performance.now() - began < SEQUENCE_MS && GO[event.key];
    began = 0;
    if (sequence) {
      event.preventDefault();
      go(sequence[0]);
      return;
    }
    if (press(event, { up, theme })) event.preventDefault();
    else if (event.key === "g") began = performance.now();
  });
}

function press(event, { up, theme }) {
  switch (event.key) {
    case "j": return move(1);
    case "k": return move(-1);
    case "x": {
      const box = event.target.closest?.("tbody tr")?.querySelector("input[type=checkbox]");
      box?.click();
      return Boolean(box);
    }
    case "ArrowDown": return event.target.closest?.("tbody") ? move(1) : false;
    case "ArrowUp": return event.target.closest?.("tbody") ? move(-1) : false;
    case "/": {
      const field = document.querySelector("[data-filter]");
      field?.focus();
      field?.select();
      return Boolean(field);
    }
    case "?": void help(); return true;
    case "d": theme(); return true;
    case "[": return tab(-1);
    case "]": return tab(1);
    case "Escape":
      if (event.target !== document.body && event.target.id !== "page") event.target.blur?.();
      else up();
      return true;
    default: return false;
  }
}

/** Move the focus to the next or previous row of its list, or to the first list of the page. */
function move(way, first = false) {
  const now = first ? null : document.activeElement;
  const list = now?.closest?.("[data-list]") ?? [...document.querySelectorAll("[data-list]")].find((one) => one.querySelector("tbody tr"));
  if (!list) return false;
  const rows = [...list.querySelectorAll("tbody tr")];
  const at = rows.indexOf(now?.closest?.("tr"));
  const row = rows[at < 0 ? (way > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + way))];
  if (!row) return false;
  const target = row.querySelector("a, button, [tabindex]") ?? row;
  if (target === row) row.tabIndex = -1;
  target.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
  return true;
}

function tab(way) {
  const tabs = [...document.querySelectorAll(".tabs a")];
  if (!tabs.length) return false;
  const at = tabs.findIndex((one) => one.hasAttribute("aria-current"));
  tabs[(at + way + tabs.length) % tabs.length].click();
  return true;
}
