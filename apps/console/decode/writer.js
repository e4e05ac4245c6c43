// Writer of decoded values as indented JSON, within limits. A body may be hostile: a few bytes can
// claim a billion values, or nest them without end. So each value, level and letter is counted, and
// at a limit the writer stops with what it has.
//
// The text is written directly, without JavaScript's own values in between. They would round large
// numbers, and change the order of names that look like numbers.

export const DEPTH_MAX = 64;
export const VALUES_MAX = 20_000;
export const TEXT_MAX = 400_000;
const BYTES_SHOWN = 2048;

/** The error of a body that does not have the expected form. Its message says why. */
export class Undecodable extends Error {}

/** The error of a body that exceeds a limit. The text so far is shown. */
export class Limit extends Error {}

export class Writer {
  /** Writers with the same `budget` share its limits. */
  constructor(budget = { values: 0, size: 0 }) {
    this.budget = budget;
    this.parts = [];
    this.levels = []; // {close, count, named} of each open list and map
  }

  get text() {
    return this.parts.join("");
  }

  /** Write a value that is a JSON text. */
  scalar(text) {
    this.#place();
    this.#add(text);
  }

  string(text) {
    this.scalar(JSON.stringify(text));
  }

  /** Write bytes as hex digits. */
  bytes(data, name = "$bytes") {
    const shown = [...data.subarray(0, BYTES_SHOWN)].map((one) => one.toString(16).padStart(2, "0")).join("");
    const more = data.length > BYTES_SHOWN ? `… ${data.length} bytes` : "";
    this.scalar(`{${JSON.stringify(name)}: "${shown}${more}"}`);
  }

  open(list) {
    if (this.levels.length >= DEPTH_MAX) throw new Limit(`It is nested deeper than ${DEPTH_MAX} levels.`);
    this.#place();
    this.#add(list ? "[" : "{");
    this.levels.push({ close: list ? "]" : "}", count: 0, named: false });
  }

  /** Write the name of the next value of a map. */
  key(name) {
    this.#place();
    this.#add(`${JSON.stringify(name)}: `);
    this.levels.at(-1).named = true;
  }

  close() {
    const level = this.levels.pop();
    this.#add(level.count ? `\n${"  ".repeat(this.levels.length)}${level.close}` : level.close);
  }

  /** Go to the place of the next value or name. */
  #place() {
    this.budget.values += 1;
    if (this.budget.values > VALUES_MAX) throw new Limit(`It has more than ${VALUES_MAX} values.`);
    const level = this.levels.at(-1);
    if (!level) return;
    if (level.named) {
      level.named = false;
      return;
    }
    this.#add(`${level.count ? "," : ""}\n${"  ".repeat(this.levels.length)}`);
    level.count += 1;
  }

  #add(text) {
    this.budget.size += text.length;
    if (this.budget.size > TEXT_MAX) throw new Limit(`It is longer than ${TEXT_MAX} letters.`);
    this.parts.push(text);
  }
}

/** Call `write(writer)` and return {text, note}. The note says that the text is cut, or "". */
export function written(write) {
  const writer = new Writer();
  try {
    const more = write(writer);
    return { ...more, text: writer.text };
  } catch (error) {
    if (error instanceof Limit) return { text: writer.text, note: `${error.message} Only the beginning is shown.` };
    throw error;
  }
}

/** Bytes that are read one after the other. */
export class Bytes {
  constructor(data) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.at = 0;
  }

  get left() {
    return this.data.length - this.at;
  }

  /** Return the position of the next `size` bytes, and go behind them. */
  skip(size) {
    if (size > this.left) throw new Undecodable(`It ends too early: ${size} bytes are missing at byte ${this.at}.`);
    this.at += size;
    return this.at - size;
  }

  take(size) {
    const start = this.skip(size);
    return this.data.subarray(start, start + size);
  }

  byte() {
    return this.data[this.skip(1)];
  }
}

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Write bytes that should be text. Bytes that are not UTF-8 are written as such. */
export function writeText(writer, data) {
  const text = utf8(data);
  if (text === null) writer.bytes(data);
  else writer.string(text);
}

/** Return bytes as text, or null if they are not UTF-8. */
export function utf8(data) {
  try {
    return strict.decode(data);
  } catch {
    return null;
  }
}

/** Return a number as JSON text. JSON has no NaN and no Infinity, so they become texts. */
export function numberText(value) {
  if (!Number.isFinite(value)) return JSON.stringify(String(value));
  return Object.is(value, -0) ? "-0" : String(value);
}

/** Return a time as JSON text, from a number (or BigInt) of `unit` parts of a second since 1970. */
export function timeText(value, unit) {
  const ms = Number((BigInt(value) * 1000n) / BigInt(unit));
  if (Math.abs(ms) > 8.64e15) return String(value);
  return JSON.stringify(new Date(ms).toISOString());
}
