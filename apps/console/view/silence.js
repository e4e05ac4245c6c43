// Silences of an alarm: who acknowledged it, or until when it is silenced, and the actions for it.

import { post } from "../base/api.js";
import { h } from "../base/dom.js";
import { moment, relative } from "../base/format.js";
import { choices, dialog } from "./dialog.js";
import { button } from "./parts.js";
import { attempt } from "./toast.js";

const TIMES = [["3600", "for 1 hour"], ["14400", "for 4 hours"], ["86400", "for 1 day"], ["604800", "for 7 days"]];

/** Return who looks after the alarm, or "". */
export function silenceText(one, model) {
  const { by, at_ms: at, until_ms: until } = one.silence ?? {};
  if (at === undefined) return "";
  const who = by ? ` by ${by}` : "";
  return until ? `silenced${who} until ${moment(until).text}` : `acknowledged${who} ${relative(at, model.now()).text}`;
}

/** Return the buttons of a raised alarm. `changed()` is called after each action. */
export function silenceButtons(one, changed) {
  const query = { topic: one.topic || null, channel: one.channel || null };
  const what = [one.topic || "the broker", one.channel].filter(Boolean).join("/");
  const send = async (text, path, body) => {
    await attempt(text, () => post(path, query, { kind: one.kind, ...body }));
    changed();
  };
  if (one.silence) return [button(one.silence.until_ms ? "End silence" : "Undo", () => void send("Receivers are told of this alarm again.", "/api/alarm/unack"), { kind: "small" })];
  const silence = async () => {
    const time = choices("How long", TIMES, "3600");
    const done = await dialog({
      title: `Silence this alarm of ${what}`, submit: "Silence", fields: [h("p.quiet", {}, "Receivers are not told that it is raised, and it is not counted. If it is still raised at the end, they are told then."), time],
      act: () => post("/api/alarm/ack", query, { kind: one.kind, seconds: Number(time.value) }),
    });
    if (done) changed();
  };
  return [button("Acknowledge", () => void send("Acknowledged until it is cleared.", "/api/alarm/ack"), { kind: "small" }), button("Silence", () => void silence(), { kind: "small" })];
}
