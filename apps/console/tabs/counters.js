// A channel's settings as they hold, and every counter by its name.

import { h, show, put } from "../base/dom.js";
import { count, duration, rate } from "../base/format.js";
import { facts } from "./keeping.js";

const never = (value, format, none) => (value === null || value === undefined ? "as the broker says" : value < 0 ? none : format(value).text);

export function countersTab() {
  const failed = h("p.note.warn", { hidden: true });
  const settings = h("dl.facts");
  const counters = h("dl.facts");
  const element = h("div.stack", {}, failed, h("div.grid.two", {},
    h("section.panel", { "aria-label": "Settings" }, h("header", {}, h("h2", {}, "Settings")), h("div.body", {}, settings)),
    h("section.panel", { "aria-label": "Counters" }, h("header", {}, h("h2", {}, "Counters")), h("div.body", {}, counters))));
  return {
    element,
    fresh({ channel }) {
      show(failed, false);
      const set = channel.settings ?? {};
      facts(settings, [
        ["Tags", set.tags || "all"], ["Ordered", set.ordered ? "yes: messages of one key go one after the other" : "no"], ["Attempts at most", set.max_attempts ? count(set.max_attempts).text : "no limit"],
        ["Dead letters go to", set.max_attempts ? set.dead_letter_topic || "TOPIC.CHANNEL.dead" : "nowhere: there is no limit of attempts"], ["Backoff", `${duration(set.backoff_s).text}, doubled up to ${duration(set.backoff_max_s).text}`],
        ["Age at most", never(set.max_age_s, duration, "no limit")], ["Consumers at most", set.max_consumers ? count(set.max_consumers).text : "no limit"],
        ["Alarm, depth", never(set.alarm_depth, count, "never")], ["Alarm, age", never(set.alarm_age_s, duration, "never")],
      ]);
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
