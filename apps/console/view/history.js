// The charts of a page over five minutes to 30 days: the history of the broker, followed by live
// values.

import { explain, get } from "../base/api.js";
import { h } from "../base/dom.js";
import { Trails } from "../base/trails.js";
import { Chart } from "./chart.js";
import { segment } from "./parts.js";

const ROW = "this";
const KEY = "zsq.span";
const SPANS = [["5m", "5 min"], ["2h", "2 h"], ["1d", "1 day"], ["30d", "30 days"]];
// each point is a mean over 2 s or 30 s, so that the line is calm
const POINTS = { "5m": 150, "2h": 240, "1d": 240, "30d": 240 };

function kept() {
  try {
    const span = sessionStorage.getItem(KEY);
    return span in POINTS ? span : "5m";
  } catch {
    return "5m";
  }
}

export class History {
  /** `charts` has the options of each Chart. `figures()` returns the current values by series.
   * `query` has the topic and the channel. `topics` names the series that come from the topic on a
   * channel's page, because a channel receives what is published to its topic. */
  constructor({ query, charts, figures, model, signal, topics = [] }) {
    Object.assign(this, { query, figures, model, signal, topics, loading: null, trails: new Trails(), span: kept() });
    this.charts = charts.map((one) => new Chart(one));
    this.names = [...new Set(charts.flatMap((one) => one.series.map((series) => series.key)))];
    this.switch = segment("Time shown", SPANS, this.span, (span) => this.#show(span));
    this.charts[0].corner.append(this.switch);
    this.element = h("div.grid.charts", {}, this.charts.map((chart) => chart.element));
    this.load();
  }

  close() {
    for (const chart of this.charts) chart.close();
  }

  #show(span) {
    this.span = span;
    try {
      sessionStorage.setItem(KEY, span);
    } catch {
      // the choice applies to this page only
    }
    this.trails = new Trails();
    this.loading = null;
    this.load();
  }

  load() {
    if (this.loading) return;
    const span = this.span;
    const mine = (async () => {
      try {
        const own = this.names.filter((name) => !this.topics.includes(name));
        const ask = (query, names) => names.length ? get("/api/history", { ...query, span, points: POINTS[span], series: names.join(",") }, this.signal) : { series: {} };
        const [found, more] = await Promise.all([ask(this.query, own), ask({ topic: this.query.topic }, this.topics)]);
        if (span !== this.span) return;
        this.trails.load({ [ROW]: { ...found.series, ...more.series } }, found.step_s, found.end_ms);
        this.draw();
      } catch (error) {
        if (!this.signal.aborted) console.warn(explain(error));
      } finally {
        if (this.loading === mine) this.loading = null;
      }
    })();
    this.loading = mine;
  }

  /** Add a sample and draw. Called once a second. */
  tick() {
    const now = this.figures();
    if (!now || !this.trails.ready) return;
    this.trails.sample(ROW, Object.fromEntries(this.names.map((name) => [name, now[name]])));
    if (!this.trails.advance(this.model.now())) this.load();
    this.draw();
  }

  draw() {
    if (!this.trails.ready) return;
    for (const chart of this.charts) {
      chart.update(chart.series.map((series) => this.trails.values(ROW, series.key)), this.trails.step, this.trails.end);
    }
  }
}
