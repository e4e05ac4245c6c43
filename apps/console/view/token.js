// The token, asked for when the broker wants one.

import { h } from "../base/dom.js";
import { explain } from "../base/api.js";
import { dialog, field } from "./dialog.js";

/** Resolves to a token; there is no way past it but closing the tab, because nothing else can be shown. */
export async function askToken(refused, used) {
  const input = h("input", { type: "password", autocomplete: "current-password", name: "token", required: true, spellcheck: "false" });
  const wrong = used ? h("p.note.alarm", { role: "alert" }, refused.code === "AUTH_FIRST" ? "That token is not known to this broker (any more)." : explain(refused)) : null;
  const text = h("p.quiet", {}, "This broker asks who you are. A token is made by ", h("code", {}, "zsq keys"), " and named in the broker's access file. It stays in this tab.");
  let token = "";
  while (!token) {
    await dialog({
      title: "Enter a token", fields: [text, wrong, field("Token", input)], submit: "Go on", cancel: "", closes: false,
      act: () => { token = input.value.trim(); },
    });
  }
  return token;
}
