// The console: shows the frame, follows the broker live, and shows the page that the address names.

import { get, onTokenWanted, Refused } from "./base/api.js";
import { announce, h, put } from "./base/dom.js";
import { Live } from "./base/live.js";
import { Model } from "./base/model.js";
import { go, match, watch } from "./base/router.js";
import { nextTheme } from "./base/theme.js";
import { closeDialogs } from "./view/dialog.js";
import { listen } from "./view/keys.js";
import { Frame } from "./view/frame.js";
import { askToken } from "./view/token.js";
import { alarmsPage } from "./pages/alarms.js";
import { auditPage } from "./pages/audit.js";
import { channelPage } from "./pages/channel.js";
import { channelsPage } from "./pages/channels.js";
import { clusterPage, partsPage } from "./pages/cluster.js";
import { processesPage } from "./pages/processes.js";
import { schedulesPage } from "./pages/schedules.js";
import { topicPage } from "./pages/topic.js";
import { topicsPage } from "./pages/topics.js";

const ROUTES = {
  "": topicsPage,
  channels: channelsPage,
  schedules: schedulesPage,
  alarms: alarmsPage,
  processes: processesPage,
  audit: auditPage,
  cluster: clusterPage,
  "cluster/:topic": partsPage,
  "topics/:topic": topicPage,
  "topics/:topic/channels/:channel": channelPage,
  "topics/:topic/channels/:channel/:tab": channelPage,
  "topics/:topic/:tab": topicPage,
};

const model = new Model();
let page = null; // {element, title, up, follow, update(), tick(), close()}
let place = "";
let leaving = new AbortController();
let drawn = false; // an update is scheduled for the next animation frame
let query = {};

const frame = new Frame({ theme: switchTheme, retry: () => live.retry() });
const live = new Live((name, data) => {
  if (name === "missing") {
    model.topics.delete(query.topic);
    page?.missing?.();
  }
  else model.take(name, data, query);
  if (name === "snapshot" || data.broker?.alarms !== undefined) void ask("alarms", "/api/alarms");
  if (name === "snapshot") void ask("jobs", "/api/jobs");
  schedule();
}, (state) => {
  frame.link(state);
  frame.page.classList.toggle("stale", state.state === "lost" && model.ready);
});

/** Request data that the stream sends only when it changes and that a snapshot does not contain. */
async function ask(name, path) {
  try {
    model.take(name, await get(path));
    schedule();
  } catch (error) {
    if (!(error instanceof Refused)) throw error; // a user without the permission sees no rows
  }
}

/** Draw at most once in each animation frame, even if many events arrive. */
function schedule() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    draw();
  });
}

function draw() {
  frame.update(model);
  retitle();
  if (model.ready) page?.update?.();
}

function show({ parts, query: asked }, top) {
  const found = match(ROUTES, parts);
  const address = parts.join("/");
  closeDialogs();
  if (page && found?.page === page.made && page.stays?.(found.params, asked)) {
    frame.here(parts);
    return;
  }
  leaving.abort();
  page?.close?.();
  leaving = new AbortController();
  const context = { model, params: found?.params ?? {}, query: asked, signal: leaving.signal };
  page = found ? found.page(context) : nothingHere();
  page.made = found?.page;
  put(frame.page, page.element);
  retitle();
  if (place !== "" && place !== address) {
    frame.page.focus({ preventScroll: true });
    announce(page.title ?? "");
  }
  place = address;
  frame.here(parts);
  query = page.follow ?? {};
  model.answered = live.follows(query);
  live.follow(query);
  draw();
  window.scrollTo(0, top);
}

/** Set the title of the browser's tab: the number of raised alarms, and the page. */
function retitle() {
  const alarms = model.broker.alarms ? `(${model.broker.alarms}) ` : "";
  const title = `${alarms}${page?.title ? `${page.title} · ZSQ` : "ZSQ"}`;
  if (document.title !== title) document.title = title;
}

function nothingHere() {
  return {
    title: "Not found",
    element: h("div.empty.panel", {}, h("strong", {}, "This page does not exist"), h("a.linked", { href: "#/" }, "All topics")),
  };
}

function switchTheme() {
  frame.theme(nextTheme());
}

setInterval(() => {
  frame.tick();
  if (model.ready && !document.hidden) page?.tick?.();
}, 1000);

onTokenWanted(askToken);
document.body.append(frame.element, h("div.unseen", { id: "announcer", "aria-live": "polite" }));
listen({ up: () => page?.up && go(page.up), theme: switchTheme });
watch(show);
