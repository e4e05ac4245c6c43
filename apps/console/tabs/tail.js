// Tab that follows a topic live: new messages as they come, the newest first. It creates no channel
// and takes messages from nobody.

import { explain, pause, Refused } from "../base/api.js";
import { h, setText, show } from "../base/dom.js";
import { count, plural } from "../base/format.js";
import { readEvents } from "../base/live.js";
import { may } from "../base/model.js";
import { MessageList } from "../view/message-list.js";
import { button, empty } from "../view/parts.js";

const KEPT = 200; // more rows are dropped, the oldest first
const AGAIN_MS = 2000;
const STARTS = [["0", "from now on"], ["10", "from 10 back"], ["100", "from 100 back"]];

export function tailTab({ topic, model, signal }) {
  const start = h("select", { "aria-label": "Where to start" }, STARTS.map(([value, text]) => h("option", { value }, text)));
  const toggle = button("Follow", () => (running ? stop("Stopped.") : void follow()), { kind: "main" });
  const clear = button("Clear", () => { [rows, shown, dropped, missing] = [[], 0, 0, 0]; list.clear(); draw(); });
  const state = h("span.quiet", { role: "status" });
  const failed = h("p.note.warn", { hidden: true, role: "alert" });
  const list = new MessageList({ topic, model, label: `New messages of ${topic}`, way: -1, empty: empty("No message yet", "Messages appear here when they are published.") });
  const isPart = topic.includes("#");
  const element = h("div.stack", {}, isPart && h("p.note", {}, "This follows one part of the topic. Follow its other parts on their pages, in the console of their broker."), h("div.toolbar", {}, start, toggle, clear, state), failed, list.element);
  let running = null;
  let [rows, shown, dropped, missing] = [[], 0, 0, 0];
  let word = "";

  const draw = () => {
    setText(toggle, running ? "Stop" : "Follow");
    start.disabled = running !== null;
    const left = dropped ? `, ${count(dropped).exact} left out because too many came at once` : "";
    const lost = missing ? `, ${count(missing).exact} cannot be read` : "";
    const counts = shown || dropped || missing ? `${plural(shown, "message")} shown${left}${lost}.` : "";
    setText(state, [word, counts].filter(Boolean).join(" "));
  };
  const stop = (text) => {
    running?.abort();
    running = null;
    word = text;
    draw();
  };
  const take = (data) => {
    shown += data.messages.length;
    dropped += data.dropped;
    missing += data.missing;
    rows = [...rows, ...data.messages].slice(-KEPT);
    list.update(rows);
    if (list.chosen === null && rows.length) list.choose(rows.at(-1));
    draw();
  };

  /** Follow until the user stops. A stream that has ended continues at its last offset. */
  const follow = async () => {
    const mine = new AbortController();
    running = mine;
    const ends = AbortSignal.any([signal, mine.signal]);
    show(failed, false);
    let query = { topic, last: start.value };
    while (!ends.aborted) {
      word = "Following.";
      draw();
      try {
        const ended = await readEvents("/api/tail", query, ends, ({ name, data }) => {
          const said = data ? JSON.parse(data) : {};
          if (name === "messages") take(said);
          if (typeof said.offset === "number") query = { topic, offset: said.offset };
          if (name === "failed") throw new Refused(503, said.message);
          return name === "again" || undefined;
        });
        if (ended) continue;
      } catch (error) {
        if (ends.aborted) return;
        setText(failed, error instanceof Refused ? explain(error) : "The connection broke.");
        show(failed, true);
        if (error instanceof Refused && error.status >= 400 && error.status < 500) return stop("");
      }
      word = "Connecting again …";
      draw();
      await pause(AGAIN_MS, ends);
      show(failed, false);
    }
  };
  let begun = false;
  return {
    element,
    update() {
      if (begun) return;
      begun = true;
      draw();
      if (may(model.topic(topic), "s")) return void follow();
      toggle.disabled = true;
      setText(failed, "Your token does not permit reading the bodies of this topic. It needs the permission subscribe.");
      show(failed, true);
    },
    close: () => { running?.abort(); list.close(); },
  };
}
