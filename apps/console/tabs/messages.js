// Tab of a topic's messages: the latest hundred, or messages by offset, time or id. One message can
// be shown completely.

import { explain, get } from "../base/api.js";
import { h, put, setAttr, setText, show } from "../base/dom.js";
import { count } from "../base/format.js";
import { may } from "../base/model.js";
import { amend, link, replace } from "../base/router.js";
import { linesButton } from "../view/lines.js";
import { MessageList } from "../view/message-list.js";
import { button, empty } from "../view/parts.js";

const COUNT = 100;
const BODY_MAX = 16_384;
const WAYS = [["latest", "the latest"], ["offset", "from offset"], ["time", "from a time"], ["id", "with id"]];

export function messagesTab({ topic, model, query, signal }) {
  const way = h("select", { "aria-label": "Which messages" }, WAYS.map(([value, text]) => h("option", { value }, text)));
  const value = h("input", { "aria-label": "Offset, time or id", autocomplete: "off", spellcheck: "false" });
  const look = h("button.button.main", { type: "submit" }, "Show");
  const older = button("Older", () => void load({ offset: Math.max(shown.start, shown.from - COUNT) }));
  const newer = button("Newer", () => void load({ offset: shown.next_offset }));
  const where = h("span.quiet", { role: "status" });
  const failed = h("p.note.warn", { hidden: true, role: "alert" });
  let shown = { start: 0, head: 0, from: 0, next_offset: 0, messages: [] };
  const none = h("div");
  const list = new MessageList({ topic, model, label: `Messages of ${topic}`, way: -1, empty: none, picked: (offset) => amend({ at: offset }) });
  const save = linesButton(`${topic}.jsonl`, () => ({ topic, offset: shown.from, end: shown.next_offset }));
  const form = h("form.toolbar", {}, way, value, look, h("div.end", {}, where, older, newer, save));
  const element = h("div.stack", {}, form, failed, list.element);

  const arrange = () => {
    const kind = way.value;
    show(value, kind !== "latest");
    value.type = kind === "time" ? "datetime-local" : "text";
    if (kind === "time") {
      value.step = "1";
      if (!value.value) value.value = new Date(Date.now() - 600_000 - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
    }
    setAttr(value, "placeholder", { offset: "0", id: "16 hex digits" }[kind] ?? null);
  };
  const asked = () => {
    const text = value.value.trim();
    if (way.value === "offset") return /^\d+$/.test(text) ? { offset: text } : "Enter an offset: a whole number.";
    if (way.value === "id") return /^[0-9a-f]{16}$/i.test(text) ? { id: text.toLowerCase() } : "Enter an id: 16 hexadecimal digits.";
    if (way.value === "time") return value.value ? { time_ms: new Date(value.value).getTime() } : "Choose a date and a time.";
    return { latest: 1 };
  };
  const complain = (text) => {
    setText(failed, text);
    show(failed, Boolean(text));
  };
  const load = async (wanted, order = 0) => {
    setAttr(look, "aria-busy", "true");
    try {
      shown = await get("/api/messages", { topic, ...wanted, count: wanted.id ? 1 : COUNT, body_max: BODY_MAX }, signal);
      complain("");
      replace(link("topics", topic, "messages", wanted.latest ? {} : wanted));
    } catch (error) {
      if (!signal.aborted) complain(explain(error));
      return;
    } finally {
      setAttr(look, "aria-busy", null);
    }
    const end = count(shown.head).exact;
    put(none, shown.head > shown.start ? empty("No messages from there on", `The topic ends at offset ${end}.`) : empty("No messages", "Publish the first one:", `echo 'hello' | zsq pub ${topic}`));
    if (order) list.table.sort = ["offset", order];
    list.update(shown.messages);
    const last = shown.messages.at(-1);
    const range = (from, to) => `${count(from).exact} to ${count(to).exact}`;
    const lost = shown.missing ? `, ${count(shown.missing).exact} of them cannot be read` : "";
    setText(where, [last && range(shown.messages[0].offset, last.offset), shown.head > shown.start && `of ${range(shown.start, shown.head - 1)}`].filter(Boolean).join(" ") + lost);
    older.disabled = shown.from <= shown.start;
    newer.disabled = shown.next_offset >= shown.head;
    const first = list.table.sort[1] < 0 ? last : shown.messages[0];
    save.disabled = !first;
    const picked = shown.messages.find((one) => String(one.offset) === query.at);
    if (picked) amend({ at: query.at });
    if (first) list.choose(picked ?? first);
    else list.clear();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = asked();
    if (typeof wanted === "string") complain(wanted);
    else void load(wanted, wanted.latest ? -1 : 1); // the requested message is shown first
  });
  way.addEventListener("change", () => {
    value.value = "";
    arrange();
    if (way.value === "latest") void load({ latest: 1 }, -1);
    else value.focus();
  });
  if (query.offset) [way.value, value.value] = ["offset", query.offset];
  else if (query.id) [way.value, value.value] = ["id", query.id];
  arrange();
  let begun = false;
  return {
    element,
    update() {
      if (begun) return;
      begun = true;
      if (!may(model.topic(topic), "s")) return complain("Your token does not permit reading the bodies of this topic. It needs the permission subscribe.");
      const wanted = query.time_ms ? { time_ms: query.time_ms } : asked();
      if (typeof wanted === "string" || wanted.latest) void load({ latest: 1 }, -1);
      else void load(wanted, 1);
    },
    close: () => list.close(),
  };
}
