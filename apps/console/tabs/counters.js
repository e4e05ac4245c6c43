// Tab of a channel's current settings, and of all its counters by name.

import { h, show, put } from "../base/dom.js";
import { count, rate } from "../base/format.js";
import { CHANNEL } from "../base/settings.js";
import { settingsOf, shownSettings } from "../view/settings.js";
import { facts } from "./keeping.js";

export function countersTab({ topic, channel: name }) {
  const failed = h("p.note.warn", { hidden: true });
  const settings = h("dl.facts");
  const counters = h("dl.facts");
  const element = h("div.stack", {}, failed, h("div.grid.two", {},
    h("section.panel", { "aria-label": "Settings" }, h("header", {}, h("h2", {}, "Settings")), h("div.body", {}, settings)),
    h("section.panel", { "aria-label": "Counters" }, h("header", {}, h("h2", {}, "Counters"), h("span.quiet", {}, "since the channel was created")), h("div.body", {}, counters))));
  return {
    element,
    fresh({ channel }) {
      show(failed, false);
      facts(settings, shownSettings(settingsOf(topic, name, CHANNEL), channel.settings));
      facts(counters, Object.entries(channel.counters ?? {}).map(([name, value]) => {
        const now = channel.rates?.[name];
        return [h("code", {}, name), [h("span", {}, typeof value === "number" ? count(value).exact : String(value)), now ? h("span.faint", {}, `  ${rate(now).text} a second`) : null]];
      }));
    },
    failed(text) {
      put(failed, text);
      show(failed, true);
    },
  };
}
