// Dialogs that ask, warn about losses, or have fields. The browser's <dialog> keeps the focus
// inside and restores it at the end.

import { freshId, h, put, setAttr, show } from "../base/dom.js";
import { explain, get } from "../base/api.js";

/** Show a dialog. It resolves to the result of `act`, or to null if the user closes the dialog.
 * `fields` are nodes. `act()` runs when the dialog is submitted. While it runs, the button is busy.
 * If it throws an error, the error is shown and the dialog stays open. */
export function dialog({ title, fields = [], submit = "OK", danger = false, wide = false, cancel = "Cancel", act, ready = true, closes = true }) {
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
    element.addEventListener("click", (event) => { if (closes && event.target === element && !form.matches(":focus-within input, :focus-within textarea")) element.close(); });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (button.disabled || button.getAttribute("aria-busy")) return;
      setAttr(button, "aria-busy", "true");
      show(error, false);
      try {
        answer = (await act?.()) ?? true;
        element.close();
      } catch (failure) {
        put(error, explain(failure));
        show(error, true);
      } finally {
        setAttr(button, "aria-busy", null);
      }
    });
    element.enable = (on) => { button.disabled = !on; };
    document.body.append(element);
    element.showModal();
    const first = form.querySelector("[autofocus]") ?? form.querySelector("input:not([type=hidden]), select, textarea");
    (first ?? (danger ? away : button))?.focus();
    for (const field of fields) field?.opened?.(element);
  });
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

/** Show what an action would lose, by the broker's preview. `element` shows the result.
 * `ask(query)` requests the preview again, and `say(text)` shows a text instead. */
export function losses(query, known = () => {}) {
  const element = h("div.note", { role: "status" }, "Asking the broker what this does …");
  let round = 0;
  const ask = async (wanted) => {
    round += 1;
    const mine = round;
    try {
      const said = await get("/api/preview", wanted);
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
      known(null, failure);
    }
  };
  const say = (text) => {
    round += 1; // a reply to an earlier request is ignored
    setAttr(element, "class", "note");
    put(element, text);
  };
  if (query) void ask(query);
  return { element, ask, say };
}

/** Ask for confirmation of an action that loses data. `name` is the text that the user must type
 * first, for an action that cannot be undone, or "". */
export function confirm({ title, text = "", query, name = "", submit, danger = true, act }) {
  let asked = null;
  // If there is nothing to empty, the action has no effect. Then no name must be typed.
  const loss = query ? losses(query, (said) => { if (asked && said?.harmless && query.action.endsWith(".empty")) asked.hidden = true; }) : null;
  const fields = [text && h("p.quiet", {}, text), loss?.element];
  let ready = true;
  if (name) {
    ready = false;
    const input = h("input", { autocomplete: "off", spellcheck: "false", autocapitalize: "off", "aria-label": `Type ${name} to confirm` });
    asked = h("label.field", {}, h("span", {}, "Type ", h("code", {}, name), " to confirm"), input);
    asked.opened = (element) => input.addEventListener("input", () => element.enable(input.value.trim() === name));
    fields.push(asked);
  }
  return dialog({ title, fields, submit, danger, act, ready });
}
