// Short messages about the result of an action. They disappear after some seconds. The message of a
// failure stays until it is closed.

import { announce, h } from "../base/dom.js";
import { explain } from "../base/api.js";

const STAYS_MS = 5000;
const MOST = 4;

function place() {
  let found = document.querySelector(".toasts");
  if (!found) document.body.append((found = h("div.toasts")));
  return found;
}

/** Show a text, or a list of texts and nodes such as a link. */
export function tell(text, bad = false) {
  const shelf = place();
  const close = h("button.button.plain.small", { type: "button", "aria-label": "Close", on: { click: () => one.remove() } }, "✕");
  const one = h(`div.toast${bad ? ".bad" : ""}`, { role: bad ? "alert" : null }, h("span", {}, text), close);
  shelf.append(one);
  while (shelf.children.length > MOST) shelf.firstChild.remove();
  if (!bad) {
    announce(one.firstChild.textContent);
    setTimeout(() => one.remove(), STAYS_MS);
  }
}

/** Run an action and show a message about its result. */
export async function attempt(done, act) {
  try {
    const answer = await act();
    tell(typeof done === "function" ? done(answer) : done);
    return answer ?? true;
  } catch (error) {
    tell(explain(error), true);
    return null;
  }
}
