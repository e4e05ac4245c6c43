// The frame around all pages: a bar with links and the state of the connection, and banners for
// outdated data and a full disk.

import { h, put, setAttr, setText, show, svg } from "../base/dom.js";
import { count, relative } from "../base/format.js";
import { theme } from "../base/theme.js";
import { help } from "./keys.js";

const NAV = [["#/", "Topics", ["", "topics"]], ["#/channels", "Channels", ["channels"]], ["#/schedules", "Schedules", ["schedules"]], ["#/alarms", "Alarms", ["alarms"]], ["#/processes", "Processes", ["processes"]], ["#/audit", "Audit log", ["audit"]], ["#/cluster", "Cluster", ["cluster"]]];
const ALARMS = NAV.findIndex(([, name]) => name === "Alarms");
const CLUSTER = NAV.findIndex(([, name]) => name === "Cluster");
const WORDS = { connecting: "connecting", live: "live", lost: "not connected", away: "paused" };
const BANNER_AFTER_MS = 1200; // a stream that reconnects at once causes no banner

export class Frame {
  constructor({ theme: switched, retry }) {
    this.state = { state: "connecting" };
    this.lostAt = 0;
    this.links = NAV.map(([href, name, heads]) => ({ heads, element: h("a", { href }, name) }));
    this.badge = h("span.badge", { hidden: true });
    this.links[ALARMS].element.append(this.badge);
    show(this.links[CLUSTER].element, false); // until the broker says that it has a cluster or a standby
    this.dot = h("i.dot", { "aria-hidden": "true" });
    this.word = h("span.word", {}, "connecting");
    this.where = h("span.where.faint");
    this.state_element = h("div.link-state", { role: "status", "aria-live": "off" }, this.dot, this.word, this.where);
    this.themeButton = h("button.button.plain.icon", { type: "button", on: { click: switched } });
    this.theme(theme());
    const helpButton = h("button.button.plain.icon.help-button", { type: "button", "aria-label": "Keyboard help", title: "Keyboard (?)", on: { click: () => void help() } }, "?");
    const brand = h("a.brand", { href: "#/", "aria-label": "ZSQ: all topics" }, mark(), h("span", {}, "ZSQ"));
    const skip = h("a.unseen", { href: "#page", on: { click: (event) => { event.preventDefault(); this.page.focus(); } } }, "Skip to the page");
    this.bannerText = h("span");
    this.banner = h("div.banner", { role: "alert", hidden: true }, this.bannerText,
      h("button.button.small", { type: "button", on: { click: retry } }, "Try now"));
    this.fullText = h("span");
    this.full = h("div.banner", { role: "alert", hidden: true }, this.fullText);
    this.page = h("main.page", { id: "page", tabindex: "-1" });
    this.element = h("div.frame", {}, skip,
      h("header.bar", {}, brand, h("nav.nav", { "aria-label": "Pages" }, this.links.map((link) => link.element)),
        h("div.bar-end", {}, this.state_element, this.themeButton, helpButton)),
      this.banner, this.full, this.page);
  }

  here(parts) {
    for (const link of this.links) setAttr(link.element, "aria-current", link.heads.includes(parts[0] ?? "") ? "page" : null);
  }

  /** Show the state of the stream. */
  link(now) {
    if (now.state === "lost" && this.state.state !== "lost") this.lostAt = Date.now();
    if (now.state === "live") this.lostAt = 0;
    this.state = now;
    setAttr(this.state_element, "data-state", now.state);
    setText(this.word, WORDS[now.state]);
    this.tick();
  }

  tick() {
    const lost = this.state.state === "lost" && Date.now() - this.lostAt >= BANNER_AFTER_MS;
    show(this.banner, lost);
    if (!lost) return;
    const seconds = Math.max(0, Math.ceil((this.state.retry_at - Date.now()) / 1000));
    const text = /[.?!]$/.test(this.state.text) ? this.state.text : `${this.state.text}.`;
    setText(this.bannerText, `Not connected: ${text} The page shows the state of ${relative(this.lostAt).text}. ${seconds ? `Trying again in ${seconds} s.` : "Trying …"}`);
  }

  update(model) {
    const alarms = model.broker.alarms ?? 0;
    show(this.badge, alarms > 0);
    setText(this.badge, count(alarms).text);
    setAttr(this.links[ALARMS].element, "aria-label", alarms ? `Alarms: ${alarms} raised` : null);
    show(this.links[CLUSTER].element, Boolean(model.broker.clustered));
    const { user, version, disk_full: full } = model.broker;
    show(this.full, Boolean(full));
    if (full) setText(this.fullText, `${full.charAt(0).toUpperCase()}${full.slice(1)}.`);
    setText(this.where, [version && `zsq ${version}`, user].filter(Boolean).join(" · "));
    if (this.state.state === "live" && this.version !== model.version) {
      this.version = model.version;
      this.dot.classList.remove("beat");
      void this.dot.getBoundingClientRect(); // so that the animation starts again
      this.dot.classList.add("beat");
    }
  }

  theme(name) {
    put(this.themeButton, { system: auto(), light: sun(), dark: moon() }[name]);
    const text = { system: "system setting", light: "light", dark: "dark" }[name];
    setAttr(this.themeButton, "title", `Theme: ${text} (d)`);
    setAttr(this.themeButton, "aria-label", `Theme: ${text}; switch`);
  }
}

function mark() {
  return svg("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, svg("path.b", { d: "M2 2h16v4H2z" }), svg("path.a", { d: "M7 8h7l-3 4H4z" }), svg("path.c", { d: "M2 14h16v4H2z" }));
}

function icon(...parts) {
  return svg("svg", { width: 16, height: 16, viewBox: "0 0 16 16", fill: "none", stroke: "currentColor", "stroke-width": 1.4, "stroke-linecap": "round", "aria-hidden": "true" }, parts);
}

function sun() {
  return icon(svg("circle", { cx: 8, cy: 8, r: 3 }), svg("path", { d: "M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3.05 3.05l1.06 1.06M11.9 11.9l1.05 1.05M3.05 12.95l1.06-1.06M11.9 4.1l1.05-1.05" }));
}

function moon() {
  return icon(svg("path", { d: "M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1z", "stroke-linejoin": "round" }));
}

function auto() {
  return icon(svg("circle", { cx: 8, cy: 8, r: 6 }), svg("path", { d: "M8 2a6 6 0 0 1 0 12z", fill: "currentColor", stroke: "none" }));
}
