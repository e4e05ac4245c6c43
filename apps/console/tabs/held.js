// Tab of the messages that a channel holds: those in flight with their consumer and time, the
// deferred ones, and the next ones.

import { every, get } from "../base/api.js";
import { h, put, setText, show } from "../base/dom.js";
import { count, duration, relative } from "../base/format.js";
import { may } from "../base/model.js";
import { link } from "../base/router.js";
import { oneLine, shortText } from "../view/body.js";
import { asked, empty, figureCell } from "../view/parts.js";
import { skipMessages } from "../view/message-actions.js";
import { Selection } from "../view/selection.js";
import { Table } from "../view/table.js";

const MS = 3000;
const COUNT = 50;
const ORDER = ["in flight", "held", "dying", "requeued", "parked", "deferred", "new"];
const KINDS = { "in flight": "in flight", held: "with a consumer, not begun", deferred: "deferred", requeued: "redelivery", parked: "waits for its key", dying: "to the dead letters", new: "next" };

export function heldTab({ topic, channel, model, query, signal }) {
  const failed = h("p.note.warn", { hidden: true });
  const sum = h("span.quiet");
  const selection = new Selection([{ text: "Skip selected", danger: true, needs: "admin on this topic", permitted: () => may(model.channel(topic, channel), "a"), act: (offsets) => skipMessages(topic, channel, offsets) }]);
  const table = new Table({ label: `What ${channel} holds`, columns: [selection.column(), ...columns(model, topic)], id: (one) => String(one.offset), sort: null, query, empty: empty("No messages held", "All messages so far are finished.") });
  selection.refresh = () => table.refresh();
  void every(MS, async () => {
    if (!may(model.channel(topic, channel), "s")) {
      put(failed, "Your token does not permit reading the bodies of this channel. It needs the permission subscribe.");
      show(failed, true);
      return;
    }
    await asked(failed, signal, async () => {
      const found = await get("/api/peek", { topic, channel, count: COUNT, body_max: 512 }, signal);
      // messages of the same state keep their order
      // A message that has failed, and that others of its key wait for, comes first.
      const blocks = (one) => (one.error ? one.blocks : 0);
      table.update([...found.messages].sort((a, b) => blocks(b) - blocks(a) || ORDER.indexOf(a.state) - ORDER.indexOf(b.state)));
      selection.update(found.messages);
      setText(sum, Object.entries(found.counts ?? {}).filter(([, number]) => number).map(([kind, number]) => `${count(number).text} ${KINDS[kind] ?? kind}`).join(", "));
    });
  }, signal);
  return { element: h("div.stack", {}, failed, h("section.panel", { "aria-label": "What it holds" }, h("header", {}, h("h2", {}, "Held now, and next"), sum), selection.element, table.element)), close: () => table.close() };
}

function columns(model, topic) {
  return [
    {
      key: "offset", title: "Offset", width: "112px",
      make: (cell, one) => cell.append(h("a.name", { href: link("topics", topic, "messages", { offset: one.offset }) }, String(one.offset))),
    },
    { key: "state", title: "State", width: "130px", show: (cell, one) => setText(cell, KINDS[one.state] ?? one.state) },
    { key: "consumer", title: "With", rank: 2, width: "20%", show: (cell, one) => { setText(cell, one.consumer ?? ""); cell.title = one.consumer ?? ""; } },
    { key: "held", title: "For", hint: "how long it has been with the consumer", num: true, width: "84px", rank: 2, show: (cell, one) => figureCell(cell, one.state === "in flight" || one.state === "held" ? duration(one.held_s) : "", one.held_s) },
    { key: "left", title: "Comes back", hint: "when its lease ends, or its delay is over", num: true, width: "104px", rank: 3, show: (cell, one) => figureCell(cell, one.state === "in flight" ? { text: `in ${duration(one.left_s).text}`, exact: "" } : one.due_ms ? relative(one.due_ms, model.now()) : "", 1) },
    { key: "blocks", title: "Blocks", hint: "how many messages of its key wait for it", num: true, width: "70px", rank: 3, show: (cell, one) => figureCell(cell, one.blocks ? count(one.blocks) : "", one.blocks, one.error && one.blocks ? "alarm" : "") },
    { key: "attempts", title: "Attempt", num: true, width: "76px", show: (cell, one) => figureCell(cell, count(one.attempts), one.attempts, one.attempts > 1 ? "warn" : "") },
    { key: "error", title: "Last error", width: "18%", rank: 2, show: (cell, one) => { setText(cell, one.error); cell.title = one.error; } },
    { key: "key", title: "Key", width: "90px", rank: 3, show: (cell, one) => setText(cell, shortText(one.message?.key)) },
    { key: "body", title: "Body", show: (cell, one) => { setText(cell, one.message ? oneLine(one.message.body) : "(not in the log any more)"); cell.classList.add("mono"); } },
  ];
}
