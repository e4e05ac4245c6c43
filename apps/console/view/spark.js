// A sparkline: the last minutes of one value, shown beside its number. It is drawn again only if
// its path changes.

import { svg } from "../base/dom.js";

const PAD = 1.5;

/** Return the path of values in a width and height, scaled to `top`. Null values are gaps. Pure. */
export function path(values, width, height, top, pad = PAD) {
  const step = width / Math.max(values.length - 1, 1);
  const room = height - 2 * pad;
  let out = "";
  let pen = false;
  for (let at = 0; at < values.length; at += 1) {
    const value = values[at];
    if (typeof value !== "number") {
      pen = false;
      continue;
    }
    const y = pad + room * (1 - Math.min(value / top, 1));
    out += `${pen ? "L" : "M"}${(at * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  }
  return out;
}

/** Return the path of the area below a line, piece by piece, for a fill. */
export function area(line, height) {
  const pieces = line.split("M").filter((piece) => piece.includes("L"));
  return pieces.map((piece) => {
    const left = piece.slice(0, piece.search(/[ ]/));
    const last = piece.slice(piece.lastIndexOf("L") + 1);
    return `M${left} ${height}L${piece}L${last.slice(0, last.indexOf(" "))} ${height}Z`;
  }).join("");
}

export class Spark {
  /** `kind` (in, out, wait or third) selects a colour of theme.css. */
  constructor(kind, width = 96, height = 22) {
    this.width = width;
    this.height = height;
    this.drawn = "";
    this.top = 0;
    this.fill = svg("path.spark-area");
    this.line = svg("path.spark-line");
    this.element = svg(`svg.spark.${kind}`, { viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "none", "aria-hidden": "true" }, this.fill, this.line);
  }

  draw(values, floor = 0) {
    let top = floor;
    for (const value of values) if (value > top) top = value;
    // The scale grows at once and shrinks only if the values are much smaller. A line that jumps
    // would look like a change of the values.
    if (top > this.top || top < this.top * 0.6) this.top = top;
    const line = values.length < 2 ? "" : path(values, this.width, this.height, this.top || 1);
    if (line === this.drawn) return;
    this.drawn = line;
    this.element.classList.toggle("flat", top === 0); // all values are 0
    this.line.setAttribute("d", line);
    this.fill.setAttribute("d", area(line, this.height));
  }
}
