// The broker's JSON API: sends requests with the token of this session, and turns refusals into
// sentences that say what to do.

const KEY = "zsq.token";
const TIMEOUT_MS = 20_000;

/** The error of a request that the broker refused, or that did not reach the broker (status 0).
 * `code` is a code such as E_NOT_FOUND, and `text` is its sentence. */
export class Refused extends Error {
  constructor(status, said) {
    const [, code, text] = /^([A-Z][A-Z0-9_]+)\b[ :]*(.*)$/s.exec(said) ?? [null, "", said];
    super(said);
    this.status = status;
    this.code = code;
    this.text = text;
  }
}

/** The error of an invalid value in a field. Its message is shown unchanged. */
export class Wrong extends Error {}

const ADVICE = {
  AUTH_FIRST: "Enter a token.",
  AUTH_FAILED: "No user has this token, or the auth server does not accept it or does not answer. Enter another token.",
  UNAUTHORIZED: "Your token does not permit this. Ask the operator for the permission in the access file.",
  E_UNAUTHORIZED: "Your token does not permit this. Ask the operator for the permission in the access file.",
  MSG_TOO_BIG: "The message is larger than the broker accepts. Send less, or raise its option --max-msg-size.",
  BODY_TOO_BIG: "The request is larger than the broker accepts. Send fewer messages at once.",
  E_DISK_FULL: "Free space on the broker's disk. Publishing then works again by itself.",
  E_TOPIC_FULL: "Let its channels catch up, empty a channel without consumers, or raise the topic's limit.",
  E_TIMEOUT: "Check whether it took effect before you try again.",
  E_CHANGED: "Nothing was done. Read what the dialog shows now, and confirm it again.",
  E_NOT_EMPTY: "Drain it first, or delete it with its messages.",
  E_CLOSED: "Open the topic again to continue.",
  E_BAD_NAME: "Use 1 to 64 of A-Z a-z 0-9 . _ - (and #ephemeral at the end).",
};

/** Return one or two sentences that describe an error to the user. */
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

/** Set the dialog that asks for a token. `dialog(refused)` resolves to the token. It is called
 * once, even if many requests wait for the token. */
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

/** Keep the token until this tab is closed. The token is never part of an address. */
export function setToken(value) {
  held = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // the browser stores nothing: the token is kept as long as this page
  }
}

/** Call fetch with the token. If the broker needs a token or another token, ask for it and try
 * again. Throws Refused. */
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

/** Read JSON, as in `get("/api/topic", {topic})`. The `signal` or a time-out ends the request. */
export async function get(path, query = {}, signal = undefined) {
  const answer = await request(url(path, query), { signal: bounded(signal) });
  return answer.json();
}

/** Change something. The names are in the query, and all other values are in the JSON body. */
export async function post(path, query = {}, body = {}) {
  const answer = await request(url(path, query), {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: bounded(undefined, 65_000),
  });
  return answer.json();
}

export async function getBlob(path, query, ms = TIMEOUT_MS) {
  const answer = await request(url(path, query), { signal: bounded(undefined, ms) });
  return answer.blob();
}

function bounded(signal, ms = TIMEOUT_MS) {
  const late = AbortSignal.timeout(ms);
  return signal ? AbortSignal.any([signal, late]) : late;
}

/** Call `step` now, and `ms` after each call has ended, until the signal. While the page is hidden,
 * `step` is not called. */
export async function every(ms, step, signal) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        await step();
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof Refused)) console.error(error); // a page's steps show refusals themselves
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
