// The dialog that asks for a token when the broker needs one.

import { h } from "../base/dom.js";
import { explain } from "../base/api.js";
import { dialog, field } from "./dialog.js";

/** Ask for a token and resolve to it. The dialog cannot be closed without a token, because nothing
 * else can be shown. */
export async function askToken(refused, used) {
  const input = h("input", { type: "password", autocomplete: "current-password", name: "token", required: true, spellcheck: "false" });
  const wrong = used ? h("p.note.alarm", { role: "alert" }, refused.code === "AUTH_FIRST" ? "The broker does not know this token. Enter another one." : explain(refused)) : null;
  const text = h("p.quiet", {}, "This broker requires a token. Create one with ", h("code", {}, "zsq keys token"), " and add it to the broker's access file. The console keeps it in this tab only.");
  let token = "";
  while (!token) {
    await dialog({
      title: "Enter a token", fields: [text, wrong, field("Token", input)], submit: "Continue", cancel: "", closes: false,
      act: () => { token = input.value.trim(); },
    });
  }
  return token;
}
