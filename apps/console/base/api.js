// The broker's JSON API: requests with the token of this session, and refusals as sentences that say what to do.

const KEY = "zsq.token";
const TIMEOUT_MS = 20_000;

/** What the broker refused, or that it was not reached (status 0). `code` is E_NOT_FOUND and the like, `text` its sentence. */
export class Refused extends Error {
  constructor(status, said) {
    const [, code, text] = /^([A-Z][A-Z0-9_]+)\b[ :]*(.*)$/s.exec(said) ?? [null, "", said];
    super(said);
    this.status = status;
    this.code = code;
    this.text = text;
  }
}

/** A person's mistake in a field, said as it is. */
export class Wrong extends Error {}

const ADVICE = {
  AUTH_FIRST: "Enter a token.",
  AUTH_FAILED: "Enter another token.",
  UNAUTHORIZED: "Your token does not permit this. Ask the operator for the permission in the access file.",
  E_UNAUTHORIZED: "Your token does not permit this. Ask the operator for the permission in the access file.",
  E_DISK_FULL: "Free space on the broker's disk. Publishing then works again by itself.",
  E_TOPIC_FULL: "Let its channels catch up, empty a channel without consumers, or raise the topic's limit.",
  E_TIMEOUT: "Check whether it took effect before you try again.",
  E_NOT_EMPTY: "Drain it first, or delete it with its messages.",
  E_CLOSED: "Open the topic again to continue.",
  E_BAD_NAME: "Use 1 to 64 of A-Z a-z 0-9 . _ - (and #ephemeral at the end).",
};

/** A sentence or two for a person. */
export function explain(error) {
  if (error instanceof Wrong) return error.message;
  if (!(error instanceof Refused)) return `The console failed: ${error.message}. Reload the page.`;
  if (error.status === 0) return `The broker was not reached: ${error.text || error.message}. Check that zsq serve is running.`;
  const advice = ADVICE[error.code] ?? (error.status === 403 ? ADVICE.UNAUTHORIZED : "");
  const said = error.text ? `${error.text.replace(/[.\s]*$/, "")}.` : "";
  return [said || (advice ? "" : `The broker answered ${error.status}${error.code && ` ${error.code}`}.`), advice].filter(Boolean).join(" ");
}

let held = "";
let asking = null;
let ask = () => Promise.reject(new Refused(401, "AUTH_FIRST"));

/** `dialog(refused)` asks for a token and resolves to it; it is called once, however many requests wait for it. */
export function onTokenWanted(dialog) {
  ask = dialog;
}

export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? held;
  } catch {
    return held;
  }
}

/** Kept until this tab is closed; never in an address. */
export function setToken(value) {
  held = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // a browser that keeps nothing: it lives as long as this page
  }
}

/** fetch with the token; asks for one and tries again where the broker wants (another) one. Throws Refused. */
export async function request(path, options = {}) {
  for (;;) {
    const used = token();
    const headers = { ...options.headers, ...(used ? { Authorization: `Bearer ${used}` } : {}) };
    let answer;
    try {
      answer = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (error.name === "TimeoutError") throw new Refused(0, "it did not answer in time");
      throw new Refused(0, "no answer");
    }
    if (answer.ok) return answer;
    const refused = new Refused(answer.status, await sentence(answer));
    const wanted = answer.status === 401 || refused.code === "AUTH_FAILED";
    if (!wanted) throw refused;
    if (token() === used) {
      asking ??= ask(refused, used).finally(() => { asking = null; });
      setToken(await asking);
    }
  }
}

async function sentence(answer) {
  try {
    const said = JSON.parse(await answer.text()).message;
    return typeof said === "string" ? said : "";
  } catch {
    return "";
  }
}

export function url(path, query = {}) {
  const asked = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return asked.length ? `${path}?${new URLSearchParams(asked)}` : path;
}

/** What is read: `get("/api/topic", {topic})`. A `signal` gives up, a time-out does too. */
export async function get(path, query = {}, signal = undefined) {
  const answer = await request(url(path, query), { signal: bounded(signal) });
  return answer.json();
}

/** What changes something: the names in the query, the rest as JSON. */
export async function post(path, query = {}, body = {}) {
  const answer = await request(url(path, query), {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: bounded(undefined, 65_000),
  });
  return answer.json();
}

export async function getBlob(path, query) {
  const answer = await request(url(path, query), { signal: bounded() });
  return answer.blob();
}

function bounded(signal, ms = TIMEOUT_MS) {
  const late = AbortSignal.timeout(ms);
  return signal ? AbortSignal.any([signal, late]) : late;
}

/** Call `step` now and again `ms` after it ended, until the signal; not while nobody looks at the page. */
export async function every(ms, step, signal) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        await step();
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof Refused)) console.error(error); // a page's own steps show refusals themselves
      }
    }
    await pause(ms, signal);
  }
}

export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
