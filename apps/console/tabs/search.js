// Tab that searches a topic's messages by time and content. The broker searches in steps of a
// second, and this page asks for the next one. So it shows how far the search is, and stops it by
// not asking again.

import { explain, get, Refused, Wrong } from "../base/api.js";
import { announce, h, setAttr, setText, show } from "../base/dom.js";
import { count, moment, plural } from "../base/format.js";
import { may } from "../base/model.js";
import { amend, link, replace } from "../base/router.js";
import { checkbox, field } from "../view/dialog.js";
import { linesButton } from "../view/lines.js";
import { MessageList } from "../view/message-list.js";
import { button, empty } from "../view/parts.js";

const PAGE = 200;
const BODY_MAX = 4096;
const TEXTS = ["text", "key", "tag", "header", "field"];

export function searchTab({ topic, model, query, signal }) {
  const input = (name, placeholder) => h("input", { name, placeholder, autocomplete: "off", spellcheck: "false", autocapitalize: "off", maxlength: "1000" });
  const time = (name) => h("input", { name, type: "datetime-local", step: "1" });
  const fields = { from: time("from"), to: time("to"), text: input("text", "anywhere in the body"), key: input("key", "any"), tag: input("tag", "any"), header: input("header", "name or name=value"), field: input("field", "user.id=7") };
  const ignore = checkbox("Ignore case");
  const go = h("button.button.main", { type: "submit" }, "Search");
  const stop = button("Stop", () => running?.abort(), { disabled: true });
  const next = button("Next", () => void search(at, true), { disabled: true, title: "Continue the search after these messages" });
  const save = linesButton(`${topic}-search.jsonl`, () => conditions());
  const progress = h("span.quiet", { role: "status" });
  const failed = h("p.note.warn", { hidden: true, role: "alert" });
  const form = h("form.panel.conditions", { "aria-label": "Conditions" },
    field("From", fields.from), field("To", fields.to), field("Text in the body", fields.text), ignore, field("Key", fields.key), field("Tag", fields.tag), field("Header", fields.header), field("Field of JSON or MessagePack", fields.field),
    h("div.toolbar", {}, go, stop, progress, h("div.end", {}, next, save)));
  const list = new MessageList({ topic, model, label: `Found in ${topic}`, way: 1, picked: (offset) => amend({ at: offset }), empty: empty("Nothing found", "No message meets all of these conditions.") });
  const isPart = topic.includes("#");
  const element = h("div.stack", {}, isPart && h("p.note", {}, "This searches one part of the topic. Search its other parts on their pages, in the console of their broker."), form, failed, list.element);
  show(list.element, false);
  let running = null;
  let at = null; // the offset at which the search continues
  let wantedAt = query.at; // the message that was chosen when this address was opened

  const conditions = () => {
    const asked = { topic };
    for (const name of TEXTS) if (fields[name].value) asked[name] = fields[name].value;
    for (const name of ["from", "to"]) {
      if (!fields[name].value) continue;
      asked[`${name}_ms`] = new Date(fields[name].value).getTime();
      if (!Number.isFinite(asked[`${name}_ms`])) throw new Wrong("Choose a date and a time.");
    }
    if (asked.from_ms > asked.to_ms) throw new Wrong("From must not be later than To.");
    if (asked.text && ignore.input.checked) asked.ignore_case = 1;
    return asked;
  };
  const complain = (text) => {
    setText(failed, text);
    show(failed, Boolean(text));
  };
  const tell = (answer, found, state) => {
    const searched = answer.end > answer.start ? Math.floor((100 * (answer.next_offset - answer.start)) / (answer.end - answer.start)) : 100;
    const where = [`offset ${count(answer.next_offset).exact}`, answer.searched_to_ms !== null && moment(answer.searched_to_ms).text].filter(Boolean).join(", ");
    const missing = answer.missing ? ` ${plural(answer.missing, "message")} cannot be read.` : "";
    const left = answer.undecoded ? ` ${plural(answer.undecoded, "body is", "bodies are")} too large to be decoded.` : "";
    setText(progress, `${plural(found, "message")} found. ${state} ${where}${state === "Searching:" ? ` (${searched} %)` : ""}.${left}${missing}`);
  };

  /** Search from an offset on, or from the beginning. Show at most PAGE messages. */
  const search = async (offset, further = false) => {
    running?.abort();
    const mine = new AbortController();
    running = mine;
    const ends = AbortSignal.any([signal, mine.signal]);
    const found = [];
    let answer = null;
    let [undecoded, missing] = [0, 0];
    complain("");
    setAttr(go, "aria-busy", "true");
    [stop.disabled, next.disabled] = [false, true];
    try {
      const asked = conditions();
      if (!further) replace(link("topics", topic, "search", { ...asked, topic: null }));
      const wanted = { ...asked, body_max: BODY_MAX, offset };
      do {
        answer = await get("/api/search", { ...wanted, count: PAGE - found.length }, ends);
        [wanted.offset, wanted.end, at] = [answer.next_offset, answer.end, answer.next_offset];
        undecoded += answer.undecoded;
        missing += answer.missing;
        found.push(...answer.messages);
        show(list.element, found.length > 0);
        list.update(found);
        const picked = answer.messages.find((one) => String(one.offset) === wantedAt);
        if (picked) {
          wantedAt = null;
          list.choose(picked);
          amend({ at: picked.offset });
        } else if (found.length && (list.chosen === null || found.length === answer.messages.length)) list.choose(found[0]);
        tell({ ...answer, undecoded, missing }, found.length, "Searching:");
      } while (!answer.done && found.length < PAGE);
    } catch (error) {
      if (signal.aborted || running !== mine) return;
      if (!mine.signal.aborted) complain(explain(error));
      if (error instanceof Refused && error.status === 404) answer = null; // it cannot be continued
    }
    setAttr(go, "aria-busy", null);
    stop.disabled = true;
    next.disabled = answer === null || answer.done;
    if (answer === null) {
      show(list.element, list.chosen !== null);
      return setText(progress, mine.signal.aborted ? "Stopped." : "");
    }
    tell({ ...answer, undecoded, missing }, found.length, mine.signal.aborted ? "Stopped at" : answer.done ? "Searched to the end," : "More may follow after");
    show(list.element, found.length > 0 || answer.done);
    if (!found.length) list.clear();
    return announce(progress.textContent);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.clear();
    void search(null);
  });
  for (const name of TEXTS) fields[name].value = query[name] ?? "";
  for (const name of ["from", "to"]) if (Number(query[`${name}_ms`])) fields[name].value = local(Number(query[`${name}_ms`]));
  ignore.input.checked = query.ignore_case === "1";
  let begun = false;
  return {
    element,
    update() {
      if (begun) return;
      begun = true;
      if (!may(model.topic(topic), "s")) {
        for (const one of [go, save]) one.disabled = true;
        complain("Your token does not permit reading the bodies of this topic. It needs the permission subscribe.");
      } else if (Object.keys(query).length) void search(null);
    },
    close: () => list.close(),
  };
}

/** Return a time for a field of the type datetime-local. */
function local(ms) {
  return new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
