// Values of the last minutes, for charts and sparklines: the history of the broker, followed by
// live values.
//
// A trail is a list of buckets of `step_s`. The last bucket is being filled. For a rate it gets the
// mean of the sampled values, and for a depth the maximum. This module uses no DOM, and the time is
// an argument.

const MAXIMA = new Set(["backlog", "depth", "in_flight", "deferred", "p50_ms", "p95_ms", "p99_ms"]);

export class Trails {
  constructor() {
    this.step = 1;
    this.points = 0;
    this.end = 0; // ms: the end of the last complete bucket
    this.rows = new Map(); // name -> {series: values}
    this.filling = new Map(); // name -> {series: [sum or maximum, count]}
  }

  get ready() {
    return this.points > 0;
  }

  /** Load the broker's history. `rows` has {series: values} by name. */
  load(rows, stepS, endMs, points = 0) {
    this.step = stepS;
    this.end = endMs;
    this.rows = new Map(Object.entries(rows));
    this.filling.clear();
    this.points = Math.max(points, ...[...this.rows.values()].flatMap((row) => Object.values(row).map((values) => values.length)), 1);
  }

  /** Add one sample of the values of `name`. */
  sample(name, figures) {
    let filling = this.filling.get(name);
    if (!filling) this.filling.set(name, (filling = {}));
    for (const [series, value] of Object.entries(figures)) {
      if (typeof value !== "number") continue;
      const held = filling[series];
      if (!held) filling[series] = [value, 1];
      else if (MAXIMA.has(series)) held[0] = Math.max(held[0], value);
      else {
        held[0] += value;
        held[1] += 1;
      }
    }
  }

  /** Close the buckets that have ended. Return false if too many were missed (the page slept), so
   * that the history must be loaded again. */
  advance(nowMs) {
    const missed = Math.floor((nowMs - this.end) / 1000 / this.step);
    if (missed > Math.max(3, 10 / this.step)) return false;
    for (let round = 0; round < missed; round += 1) this.#close();
    return true;
  }

  #close() {
    this.end += this.step * 1000;
    for (const name of this.filling.keys()) if (!this.rows.has(name)) this.rows.set(name, {});
    for (const [name, row] of this.rows) {
      const filling = this.filling.get(name) ?? {};
      for (const series of new Set([...Object.keys(row), ...Object.keys(filling)])) {
        row[series] ??= [];
        // without a sample the last value is repeated
        row[series].push(filling[series] ? filled(filling[series]) : (row[series].at(-1) ?? null));
        if (row[series].length > this.points) row[series].splice(0, row[series].length - this.points);
      }
    }
    this.filling.clear();
  }

  /** Return all values, oldest first. The last value is that of the bucket that is being filled. */
  values(name, series) {
    const whole = this.rows.get(name)?.[series] ?? [];
    const last = this.filling.get(name)?.[series];
    return last ? [...whole, filled(last)] : whole;
  }

  forget(name) {
    this.rows.delete(name);
    this.filling.delete(name);
  }
}

function filled(held) {
  return held ? held[0] / held[1] : null;
}
