// The last minutes of figures, for charts and sparklines: what the broker remembers, and from then on what comes live.
//
// A trail is a row of buckets of `step_s`. The last one is being filled: a rate is the mean of what was seen in it, a depth the maximum.
// No DOM, and the clock is an argument.

const MAXIMA = new Set(["backlog", "depth", "in_flight", "deferred", "p50_ms", "p95_ms", "p99_ms"]);

export class Trails {
  constructor() {
    this.step = 1;
    this.points = 0;
    this.end = 0; // ms: the end of the last whole bucket
    this.rows = new Map(); // name -> {series: values}
    this.filling = new Map(); // name -> {series: [sum or maximum, count]}
  }

  get ready() {
    return this.points > 0;
  }

  /** What the broker remembers: `rows` by name, each {series: values}. */
  load(rows, stepS, endMs, points = 0) {
    this.step = stepS;
    this.end = endMs;
    this.rows = new Map(Object.entries(rows));
    this.filling.clear();
    this.points = Math.max(points, ...[...this.rows.values()].flatMap((row) => Object.values(row).map((values) => values.length)), 1);
  }

  /** One look at the figures of `name`. */
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

  /** Close buckets that are over. False: so many were missed (the page slept) that what the broker remembers must be loaded again. */
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
        row[series].push(filling[series] ? filled(filling[series]) : (row[series].at(-1) ?? null)); // as before: nothing changed
        if (row[series].length > this.points) row[series].splice(0, row[series].length - this.points);
      }
    }
    this.filling.clear();
  }

  /** All values, oldest first, the bucket that is being filled last. */
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
