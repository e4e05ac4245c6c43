// Dialogs that ask, warn about losses, or have fields. The browser's <dialog> keeps the focus
// inside and restores it at the end. A dialog belongs to the page that opened it, and closes with it.

import { freshId, h, put, setAttr, show } from "../base/dom.js";
import { explain, get } from "../base/api.js";
import { tell } from "./toast.js";

const OF_PAGE = "of-page";

/** Show a dialog. It resolves to the result of `act`, or to null if the user closes the dialog.
 * `fields` are nodes. `act()` runs when the dialog is submitted. While it runs, the button is busy.
 * If it throws an error, the error is shown and the dialog stays open. `opened(element)` gets the open
 * dialog, with `enable(on)` for its button and `forget()`, which hides the error. A click outside does not
 * close the dialog, because what the user has written would be lost. */
export function dialog({ title, fields = [], submit = "OK", danger = false, wide = false, cancel = "Cancel", act, ready = true, closes = true, opened = () => {} }) {
  const id = freshId("dialog");
  const error = h("p.note.alarm", { role: "alert", hidden: true });
  const button = h("button.button.main", { type: "submit", disabled: !ready }, submit);
  if (danger) button.classList.add("danger");
  const away = cancel ? h("button.button", { type: "button" }, cancel) : null;
  const form = h("form", { method: "dialog" }, h("h2", { id }, title), fields, error, h("div.foot", {}, away, button));
  const element = h("dialog", { "aria-labelledby": id, class: wide ? "wide" : null }, form);
  return new Promise((resolve) => {
    let answer = null;
    const end = () => {
      element.remove();
      resolve(answer);
    };
    element.addEventListener("close", end);
    element.addEventListener("cancel", (event) => { if (!closes) event.preventDefault(); });
    away?.addEventListener("click", () => element.close());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (button.disabled || button.getAttribute("aria-busy")) return;
      setAttr(button, "aria-busy", "true");
      show(error, false);
      try {
        answer = (await act?.()) ?? true;
        if (!element.open) tell(`Done, after its dialog was closed: ${title.replace(/\?$/, "")}.`);
        element.close();
      } catch (failure) {
        if (!element.open) tell(explain(failure), true);
        put(error, explain(failure));
        show(error, true);
      } finally {
        setAttr(button, "aria-busy", null);
      }
    });
    element.enable = (on) => {
      button.disabled = !on;
      if (on && !first && !danger) button.focus();
    };
    element.forget = () => show(error, false);
    if (closes) element.classList.add(OF_PAGE);
    const first = form.querySelector("[autofocus]") ?? form.querySelector("input:not([type=hidden]), select, textarea");
    document.body.append(element);
    element.showModal();
    (first ?? (danger ? away : button))?.focus();
    opened(element);
  });
}

/** Close the dialogs of the page that the user leaves. The question for a token belongs to no page. */
export function closeDialogs() {
  for (const element of document.querySelectorAll(`dialog.${OF_PAGE}`)) element.close();
}

/** Return a field with its label. */
export function field(label, input, help = "") {
  return h("label.field", {}, h("span", {}, label), input, help && h("small", {}, help));
}

export function checkbox(label, checked = false) {
  const input = h("input", { type: "checkbox" });
  input.checked = checked;
  const element = h("label.check", {}, input, h("span", {}, label));
  element.input = input;
  return element;
}

/** Return radio buttons for the options [[value, label, node or text below]]. `.value` is the
 * chosen value. */
export function choices(label, options, chosen, changed = () => {}) {
  const name = freshId("choice");
  const element = h("div.choices", { role: "radiogroup", "aria-label": label });
  for (const [value, text, more] of options) {
    const input = h("input", { type: "radio", name, value });
    input.checked = value === chosen;
    input.addEventListener("change", () => {
      element.value = value;
      changed(value);
    });
    element.append(h("label", {}, input, h("span", {}, text), more && (typeof more === "string" ? h("small.faint", {}, more) : more)));
  }
  element.value = chosen;
  return element;
}

/** Show what an action would lose, by the broker's `preview`. `element` shows the result.
 * `ask(query)` requests it, and `say(text)` shows a text instead. `known(said)` gets each
 * preview, or null if it failed. */
function losses(known, preview) {
  const element = h("div.note", { role: "status" }, "Asking the broker what this does …");
  let round = 0;
  const ask = async (wanted) => {
    round += 1;
    const mine = round;
    try {
      const said = await preview(wanted);
      if (mine !== round) return;
      const lines = [...(said.says ?? [])];
      if (said.unknown) lines.push("A part of the broker is starting, so more may be affected than this shows.");
      setAttr(element, "class", said.harmless ? "note" : "note alarm");
      put(element, h("ul.loses", {}, (lines.length ? lines : ["Nothing is lost."]).map((line) => h("li", {}, line))));
      known(said);
    } catch (failure) {
      if (mine !== round) return;
      setAttr(element, "class", "note warn");
      put(element, explain(failure));
      known(null);
    }
  };
  const say = (text) => {
    round += 1; // a reply to an earlier request is ignored
    setAttr(element, "class", "note");
    put(element, text);
  };
  return { element, ask, say };
}

/** Ask for confirmation of an action, with what the broker says that it would lose. `name` is the
 * text that the user must type first, for an action that cannot be undone, or "".
 *
 * `query` asks for the preview. For a preview that depends on the `fields`, `follow(ask)` gets a
 * function instead: `ask(query)` shows another preview, and `ask(null, text)` shows a text.
 * `needs(said)` returns what the user must do by this preview: "type" the name, "agree", or
 * "nothing" if the action is not possible. `said` is null if there is no preview.
 *
 * `act(seen)` gets what the preview has shown, and sends it with the request. If the broker answers
 * that this has changed, the dialog shows the new preview. If even the topic is another one, the
 * name must be typed again. `preview(query)` asks for the preview. */
export function confirm({ title, text = "", fields = [], query = null, preview = (wanted) => get("/api/preview", wanted), follow = null, name = "", needs = usual(name, query), submit, danger = true, act }) {
  const input = name && h("input", { autocomplete: "off", spellcheck: "false", autocapitalize: "off", "aria-label": `Type ${name} to confirm` });
  const typing = name && h("label.field", {}, h("span", {}, "Type ", h("code", {}, name), " to confirm"), input);
  let asked = query;
  let seen;
  let waits = true; // for the preview
  let need = query ? "type" : needs(null);
  let element = null;
  const arrange = () => {
    if (typing) show(typing, need === "type");
    element?.enable(!waits && (need === "agree" || (need === "type" && input.value.trim() === name)));
  };
  const loss = losses((said) => {
    if (typing && seen && said && said.seen.uuid !== seen.uuid) input.value = "";
    seen = said?.seen;
    waits = false;
    need = needs(said);
    arrange();
  }, preview);
  const ask = (wanted, instead = "") => {
    asked = wanted;
    waits = true;
    element?.forget();
    if (wanted) void loss.ask(wanted);
    else loss.say(instead);
    arrange();
  };
  if (query) ask(query);
  else if (follow) follow(ask);
  else waits = false;
  if (input) input.addEventListener("input", arrange);
  const tried = async () => {
    try {
      return await act(seen);
    } catch (error) {
      if (error.code === "E_CHANGED") {
        waits = true;
        void loss.ask(asked);
        arrange();
      }
      throw error;
    }
  };
  return dialog({
    title, fields: [text && h("p.quiet", {}, text), fields, (query || follow) && loss.element, typing], submit, danger, act: tried, ready: false,
    opened: (shown) => {
      element = shown;
      arrange();
    },
  });
}

/** Return what the user of a dialog without a preview has seen. The broker refuses the action if the
 * topic was deleted and created again. */
export function seenTopic(uuid) {
  return { uuid, counts: {} };
}

/** Return what a user must do before an action. If there is nothing to empty, it has no effect. */
function usual(name, query) {
  return (said) => (!name ? "agree" : said?.harmless && query.action.endsWith(".empty") ? "nothing" : "type");
}
