// A line chart over time: a few series, an axis from 0, and values that follow the pointer or the
// arrow keys. It is plain SVG without a library.

import { h, put, setAttr, setText, svg } from "../base/dom.js";
import { moment } from "../base/format.js";
import { area, path } from "./spark.js";

const HEIGHT = 132;
const FOOT = 18; // height of the time labels below the chart
const HEAD = 8;
const LONG_MS = 2 * 86_400_000; // a longer time is labelled with days
const LEFT = 48; // width of the axis labels, so that no line crosses them

/** Return the top of an axis that includes `value`: 1, 2, 2.5 or 5 times a power of ten, or a power
 * of two for bytes. Pure. */
export function niceTop(value, binary = false) {
  if (!(value > 0)) return 1;
  if (binary) return 2 ** Math.ceil(Math.log2(value * 0.9999));
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 2.5, 5, 10]) if (value <= step * power * 1.0001) return step * power;
  return 10 * power;
}

/** Return round times within a span, at most `most` of them. Pure. */
export function times(startMs, endMs, most) {
  const steps = [30, 60, 120, 300, 600, 900, 1800, 3600, 7200].map((s) => s * 1000);
  const step = steps.find((one) => (endMs - startMs) / one <= most) ?? steps.at(-1);
  const found = [];
  for (let at = Math.ceil(startMs / step) * step; at <= endMs; at += step) found.push(at);
  return found;
}

export class Chart {
  /** `series` is [{key, name, kind, area}]. `format` converts a value to {text, exact}. The axis
   * reaches at least `least`. `binary` is true for bytes. */
  constructor({ title, series, format, least = 1, binary = false }) {
    this.series = series.map((one) => ({ ...one, line: svg(`path.chart-line.${one.kind}`), fill: one.area ? svg(`path.chart-area.${one.kind}`) : null }));
    this.format = format;
    this.title = title;
    this.least = least;
    this.binary = binary;
    this.width = 0;
    this.top = 0;
    this.data = { values: [], step: 1, end: 0 };
    this.at = null; // the index of the value under the pointer
    this.grid = svg("g.chart-grid");
    this.words = svg("g.chart-grid"); // drawn above the lines, so that the labels stay readable
    this.cross = svg("line.chart-cross", { y1: HEAD, y2: HEIGHT - FOOT, visibility: "hidden" });
    this.svg = svg("svg.chart-svg", { height: HEIGHT, role: "img" }, this.grid,
      this.series.map((one) => one.fill), this.series.map((one) => one.line), this.words, this.cross);
    this.when = h("span.chart-when.faint");
    this.legend = this.series.map((one) => {
      const value = h("b", {}, "–");
      return { value, element: h("span.chart-key", {}, h(`i.${one.kind}`, { "aria-hidden": "true" }), one.name, " ", value) };
    });
    this.plot = h("div.chart-plot", { tabindex: "0", role: "group", "aria-label": `${title}: arrow keys read values` }, this.svg);
    this.corner = h("span.chart-corner", {}, this.when);
    this.element = h("figure.chart.panel", {},
      h("figcaption", {}, h("h2", {}, title), this.corner, h("span.chart-keys", {}, this.legend.map((one) => one.element))), this.plot);
    this.plot.addEventListener("pointermove", (event) => this.#point(event.clientX));
    this.plot.addEventListener("pointerleave", () => this.#read(null));
    this.plot.addEventListener("blur", () => this.#read(null));
    this.plot.addEventListener("keydown", (event) => this.#key(event));
    this.sizes = new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.top = 0;
      this.#draw();
    });
    this.sizes.observe(this.plot);
  }

  close() {
    this.sizes.disconnect();
  }

  /** Draw new values: one list for each series, oldest first. A list may lack values at its
   * beginning. The last value belongs to `end` (ms). */
  update(values, step, end) {
    this.data = { values, step, end };
    this.#draw();
  }

  #count() {
    return Math.max(...this.data.values.map((one) => one.length), 0);
  }

  #draw() {
    if (this.width <= LEFT) return;
    const { values, step, end } = this.data;
    const count = this.#count();
    let most = this.least;
    for (const one of values) for (const value of one) if (value > most) most = value;
    const top = niceTop(most, this.binary);
    if (top > this.top || most < this.top * 0.35) this.top = top;
    const height = HEIGHT - FOOT - HEAD;
    this.series.forEach((one, at) => {
      const row = values[at] ?? [];
      const whole = row.length < count ? [...Array(count - row.length).fill(null), ...row] : row;
      const line = whole.length < 2 ? "" : path(whole, this.width - LEFT, height, this.top, 0);
      setAttr(one.line, "d", line);
      if (one.fill) setAttr(one.fill, "d", area(line, height));
      for (const drawn of [one.line, one.fill]) if (drawn) setAttr(drawn, "transform", `translate(${LEFT} ${HEAD})`);
    });
    setAttr(this.svg, "width", this.width);
    setAttr(this.svg, "viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.#axes(end - (count - 1) * step * 1000, end);
    this.#read(this.at);
  }

  #axes(start, end) {
    const height = HEIGHT - FOOT - HEAD;
    const lines = [];
    const words = [];
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(HEAD + height * (1 - share)) + 0.5;
      lines.push(svg("line", { x1: 0, x2: this.width, y1: y, y2: y }));
      if (share) words.push(svg("text", { x: 2, y: y - 3 + (share === 1 ? 13 : 0) }, this.format(this.top * share).text));
    }
    if (end > start) {
      for (const at of times(start, end, Math.max(2, Math.floor((this.width - LEFT) / 70)))) {
        const x = LEFT + ((at - start) / (end - start)) * (this.width - LEFT);
        if (x < LEFT + 14 || x > this.width - 14) continue;
        words.push(svg("text.time", { x: x.toFixed(1), y: HEIGHT - 4 }, end - start > LONG_MS ? moment(at, at + LONG_MS).text.split(" ").slice(0, 2).join(" ") : moment(at, at).text.slice(0, 5)));
      }
    }
    const drawn = [...lines, ...words].map((mark) => mark.outerHTML).join("");
    if (drawn === this.axes) return;
    this.axes = drawn;
    put(this.grid, lines);
    put(this.words, words);
  }

  #point(clientX) {
    const box = this.plot.getBoundingClientRect();
    const count = this.#count();
    this.#read(Math.round(((clientX - box.left - LEFT) / (box.width - LEFT)) * (count - 1)));
  }

  #key(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    this.#read((this.at ?? this.#count()) + way);
  }

  /** Show the values at an index, or the newest values. */
  #read(at) {
    const count = this.#count();
    this.at = at === null || !count ? null : Math.max(0, Math.min(count - 1, at));
    const back = this.at === null ? 0 : count - 1 - this.at;
    const said = [];
    this.series.forEach((one, index) => {
      const row = this.data.values[index] ?? [];
      const part = this.format(row[row.length - 1 - back]);
      setText(this.legend[index].value, part.text);
      setAttr(this.legend[index].value, "title", part.exact);
      said.push(`${one.name} ${part.text}`);
    });
    setText(this.when, this.at === null ? "" : moment(this.data.end - back * this.data.step * 1000).text);
    setAttr(this.cross, "visibility", this.at === null ? "hidden" : "visible");
    if (this.at !== null) {
      const x = LEFT + (count > 1 ? (this.at / (count - 1)) * (this.width - LEFT) : 0);
      setAttr(this.cross, "x1", x.toFixed(1));
      setAttr(this.cross, "x2", x.toFixed(1));
    }
    const label = `${this.title}: ${said.join(", ")}`;
    if (this.at === null) setAttr(this.svg, "aria-label", label);
    else setAttr(this.plot, "aria-label", `${moment(this.data.end - back * this.data.step * 1000).text}: ${said.join(", ")}`);
  }
}
