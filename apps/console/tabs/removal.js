// Tab for taking a topic out of use step by step, without losing messages: close it to publishers,
// let it drain, close it to consumers, delete it. Each step before the deletion can be undone.

import { every, get, post } from "../base/api.js";
import { h, put } from "../base/dom.js";
import { go } from "../base/router.js";
import { may } from "../base/model.js";
import { confirm } from "../view/dialog.js";
import { asked, button, permit } from "../view/parts.js";
import { deleteTopic } from "../view/topic-actions.js";
import { attempt, tell } from "../view/toast.js";

export function removalTab({ topic, model, signal }) {
  const failed = h("p.note.warn", { hidden: true });
  const steps = h("ol.steps");
  const element = h("div.stack", {}, failed, h("section.panel", { "aria-label": "Safe removal" }, h("header", {}, h("h2", {}, "Remove the topic without losing a message")), h("div.body", {}, steps)));
  let drawn = "";
  let now = { state: "", left: [], drained: false };
  const load = () => asked(failed, signal, async () => {
    now = (await get("/api/topic", { topic }, signal)).retire ?? now;
    draw();
  });
  const act = async (done, step) => {
    await attempt(done, step);
    await load();
  };
  const close = (to) => act(to === "publishers" ? "Closed to publishers." : "Closed to consumers.", () => post("/api/topic/close", { topic }, { to }));
  const open = (to) => act("Opened again.", () => post("/api/topic/open", { topic }, { to }));
  const first = async () => {
    const done = await confirm({
      title: `Close ${topic} to publishers?`, query: { action: "topic.close", topic }, submit: "Close to publishers", danger: false,
      text: "Publishes are then refused with E_CLOSED. Consumers continue and drain the topic. You can open it again at any time.", act: (seen) => post("/api/topic/close", { topic }, { to: "publishers", seen }),
    });
    if (done) tell("Closed to publishers.");
    await load();
  };
  const last = async () => {
    const done = await confirm({ title: `Delete ${topic}?`, query: { action: "topic.delete", topic }, name: topic, text: "The topic is drained and closed. Its log is deleted, with all messages that were kept. This cannot be undone.", submit: "Delete it", act: (seen) => post("/api/topic/delete", { topic }, { force: false, seen }) });
    if (!done) return load();
    tell(`${topic} is deleted.`);
    return go("#/");
  };
  const draw = () => {
    const admin = may(model.topic(topic), "a");
    const said = JSON.stringify([now, admin]);
    if (said === drawn) return;
    drawn = said;
    const { state, left, drained } = now;
    const at = state === "" ? 0 : state === "consumers" ? 3 : drained ? 2 : 1;
    const action = (text, step, kind = "main") => {
      const made = button(text, () => void step(), { kind });
      permit(made, admin, "admin on this topic");
      return made;
    };
    const step = (number, title, text, ...actions) => h(`li${number < at ? ".done" : number === at ? ".now" : ".later"}`, { "aria-current": number === at ? "step" : null }, h("h2", {}, title), text, number === at && h("div.actions", {}, actions));
    const waits = left.length ? h("ul", {}, left.map((one) => h("li.quiet", {}, one))) : h("p.quiet", {}, "All channels have finished all messages.");
    put(steps,
      step(0, "Close it to publishers", h("p.quiet", {}, "Publishes are refused, and consumers continue. All acknowledged messages are stored."), action("Close to publishers", first)),
      step(1, "Let it drain", at === 1 ? waits : h("p.quiet", {}, "Wait until all channels have finished all messages and no message is delayed."), action("Open again", () => open("publishers"), ""), action("Delete it anyway", () => deleteTopic(topic), "danger")),
      step(2, "Close it to consumers", h("p.quiet", {}, "Connected consumers end with E_CLOSED, and new ones are refused."), action("Close to consumers", () => close("consumers")), action("Open again", () => open("publishers"), "")),
      step(3, "Delete it", h("p.quiet", {}, "The broker refuses this if messages are unfinished."), action("Delete it", last, "danger"), action("Open to consumers", () => open("consumers"), ""), action("Open again", () => open("publishers"), "")));
  };
  void every(2000, load, signal);
  return { element, update: draw };
}
