// Formats of numbers: short enough for a dense table, and exact on hover. Pure: each function takes
// a number and returns {text, exact}.

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const THIN = "\u2009"; // between a number and its unit
export const UNKNOWN = { text: "–", exact: "not known" };

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "2-digit" });

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Format a number with three significant digits: 1.23, 12.3, 123. */
function three(value) {
  const size = Math.abs(value);
  return size >= 99.95 ? value.toFixed(0) : size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

/** Format a count: all digits up to 9,999, then 12.3k, 4.56M. */
export function count(value) {
  if (!known(value)) return UNKNOWN;
  const exact = whole.format(value);
  if (Math.abs(value) < 10_000) return { text: exact, exact };
  for (const [size, unit] of UNITS) if (Math.abs(value) >= size * 0.9995) return { text: three(value / size) + unit, exact };
  return { text: exact, exact };
}

/** Format a rate a second: 0, 0.4, 37.2, 1.24k. */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  const exact = `${fine.format(value)} a second`;
  if (value === 0) return { text: "0", exact };
  if (value < 0.05) return { text: "<0.1", exact };
  if (value < 99.95) return { text: value.toFixed(1), exact };
  if (value < 9_999.5) return { text: whole.format(value), exact };
  return { text: count(value).text, exact };
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const exact = `${whole.format(value)} bytes`;
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1023.5 && unit < BYTES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return { text: `${unit ? three(size) : whole.format(size)}${THIN}${BYTES[unit]}`, exact };
}

/** Format a duration in seconds: 850 ms, 12 s, 3 m 20 s, 5 h 12 m, 3 d 4 h. */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const exact = `${fine.format(seconds)} seconds`;
  if (seconds === 0) return { text: "0", exact };
  if (seconds < 0.0009995) return { text: `${three(seconds * 1e6)}${THIN}µs`, exact };
  if (seconds < 0.9995) return { text: `${three(seconds * 1e3)}${THIN}ms`, exact };
  if (seconds < 59.95) return { text: `${seconds < 9.95 ? seconds.toFixed(1) : seconds.toFixed(0)}${THIN}s`, exact };
  const at = Math.round(seconds);
  if (at < 3600) return { text: pair(at, 60, "m", 1, "s"), exact };
  if (at < 86_400) return { text: pair(at, 3600, "h", 60, "m"), exact };
  return { text: pair(at, 86_400, "d", 3600, "h"), exact };
}

function pair(at, large, largeUnit, small, smallUnit) {
  const rest = Math.floor((at % large) / small);
  const head = `${whole.format(Math.floor(at / large))}${THIN}${largeUnit}`;
  return rest ? `${head} ${rest}${THIN}${smallUnit}` : head;
}

/** Format nanoseconds as a duration. */
export function latency(ns) {
  return known(ns) ? duration(ns / 1e9) : UNKNOWN;
}

/** Format a share from 0 to 1 as a percentage. */
export function percent(share) {
  if (!known(share)) return UNKNOWN;
  const value = share * 100;
  return { text: `${value !== 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)}${THIN}%`, exact: `${fine.format(value)} per cent` };
}

/** Format a time in milliseconds since 1970 in the local time zone: the time, and the day if it is
 * not today. `exact` is UTC. */
export function moment(ms, now = Date.now()) {
  if (!known(ms) || Math.abs(ms) > 8.64e15) return UNKNOWN;
  const date = new Date(ms);
  const today = new Date(now).toDateString() === date.toDateString();
  const year = new Date(now).getFullYear() === date.getFullYear() ? "" : ` ${date.getFullYear()}`;
  return { text: today ? clock.format(date) : `${day.format(date)}${year} ${clock.format(date)}`, exact: date.toISOString().replace("T", " ") };
}

/** Format a time relative to now: "12 s ago", "in 3 m 20 s". */
export function relative(ms, now = Date.now()) {
  if (!known(ms)) return UNKNOWN;
  const seconds = (ms - now) / 1000;
  const exact = moment(ms, now).exact;
  if (Math.abs(seconds) < 1) return { text: "now", exact };
  const size = duration(Math.round(Math.abs(seconds))).text;
  return { text: seconds > 0 ? `in ${size}` : `${size} ago`, exact };
}

/** Return a number with its noun: "1 message", "12 messages". */
export function plural(number, one, many = `${one}s`) {
  return `${whole.format(number)} ${number === 1 ? one : many}`;
}

/** Parse a duration such as "2.5 s", "10 m", "7d" or "90". Return seconds, or null if the text is
 * not a duration. */
export function parseDuration(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?\s*$/.exec(text);
  if (!found) return null;
  return Number(found[1]) * { ms: 0.001, s: 1, m: 60, min: 60, h: 3600, d: 86_400 }[found[2] ?? "s"];
}

/** Parse a size such as "1 GiB", "64MiB" or "1024". Return bytes, or null if the text is not a
 * size. */
export function parseBytes(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)?\s*$/i.exec(text);
  if (!found) return null;
  const unit = BYTES.findIndex((name) => name.toLowerCase() === (found[2] ?? "B").toLowerCase());
  return Math.round(Number(found[1]) * 1024 ** unit);
}

const PER_S = { s: 1, m: 60, min: 60, h: 3600, d: 86_400 };

/** Parse a rate such as "100/s", "30/m" or "5". Return messages a second, or null if the text is
 * not a rate. */
export function parseRate(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(?:\/\s*(s|m|min|h|d))?\s*$/.exec(text);
  return found ? Number(found[1]) / PER_S[found[2] ?? "s"] : null;
}

/** Format messages a second in the form that `parseRate` accepts: 0.5 as "30/m". */
export function rateLimit(rate) {
  if (!known(rate)) return UNKNOWN;
  const exact = `${fine.format(rate)} messages a second`;
  const counts = ["s", "m", "h", "d"].map((unit) => [Number((rate * PER_S[unit]).toFixed(6)), unit]);
  const [most, unit] = counts.find(([one]) => one >= 1 && Number.isInteger(one)) ?? counts.find(([one]) => one >= 1) ?? counts[3];
  return { text: `${most}/${unit}`, exact };
}
