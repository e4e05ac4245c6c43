// The stream of changes: server-sent events that are read by fetch, because EventSource cannot send
// a token. The stream reconnects by itself.
//
// The states are "connecting", "live", "lost" (with `retry_at`) and "away". In the state "away" the
// page has been hidden for a minute, so the broker need not work for it. The server sends something
// at least every 15 s. A stream that has sent nothing for 40 s is dead, for example because of a
// proxy or a sleeping laptop.

import { Refused, explain, request, url } from "./api.js";

const SILENCE_MS = 40_000;
const AWAY_MS = 60_000;
const PAUSES_MS = [500, 1000, 2000]; // short, because a user who watches an incident waits for this

/** Return the complete events of a text, and the rest of the text. Pure. */
export function split(text) {
  const blocks = text.split(/\r?\n\r?\n/);
  const rest = blocks.pop();
  const events = [];
  for (const block of blocks) {
    let name = "message";
    const data = [];
    for (const line of block.split(/\r?\n/)) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
    }
    if (data.length || name !== "message") events.push({ name, data: data.join("\n") });
  }
  return { events, rest };
}

export class Live {
  /** `on(name, data)` is called for each event. `state(now)` is called with {state, retry_at, text}
   * when the state changes. */
  constructor(on, state) {
    this.on = on;
    this.tell = state;
    this.query = null;
    this.failures = 0;
    this.now = { state: "connecting" };
    this.ending = null; // the AbortController of the current stream
    this.wake = null; // ends a pause
    this.awayTimer = 0;
    document.addEventListener("visibilitychange", () => this.#looked());
    window.addEventListener("online", () => this.retry());
  }

  /** Return true if the stream of this query runs. */
  follows(query) {
    return this.query !== null && url("", query) === url("", this.query) && this.now.state === "live";
  }

  /** Follow the changes that match `query`. The stream of an earlier query ends. */
  follow(query) {
    const same = this.follows(query);
    this.query = query;
    if (!same) this.#restart();
  }

  /** Reconnect at once if the stream is waiting to reconnect. */
  retry() {
    if (this.now.state === "lost") this.wake?.();
  }

  #restart() {
    this.ending?.abort();
    if (document.hidden && this.now.state === "away") return;
    this.ending = new AbortController();
    void this.#run(this.query, this.ending);
  }

  #looked() {
    clearTimeout(this.awayTimer);
    if (!document.hidden) {
      if (this.now.state === "away") {
        this.#say({ state: "connecting" });
        this.#restart();
      }
      return;
    }
    this.awayTimer = setTimeout(() => {
      this.#say({ state: "away" });
      this.ending?.abort();
    }, AWAY_MS);
  }

  #say(now) {
    this.now = now;
    this.tell(now);
  }

  async #run(query, ending) {
    if (this.now.state !== "lost") this.#say({ state: "connecting" });
    while (!ending.signal.aborted) {
      let text = "the stream ended";
      try {
        const again = await this.#read(query, ending);
        if (again) continue;
      } catch (error) {
        if (ending.signal.aborted) return;
        text = error instanceof Refused ? explain(error) : "the connection broke";
        if (error instanceof Refused && error.status === 404) {
          this.on("missing", {});
          text = explain(error);
        }
      }
      if (ending.signal.aborted) return;
      const ms = PAUSES_MS[Math.min(this.failures, PAUSES_MS.length - 1)] * (0.75 + Math.random() / 2);
      this.failures += 1;
      this.#say({ state: "lost", retry_at: Date.now() + ms, text });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, ms);
        this.wake = () => { clearTimeout(timer); resolve(); };
        ending.signal.addEventListener("abort", this.wake, { once: true });
      });
    }
  }

  /** Read one stream to its end. Return true if the server asks for a new stream at once. */
  async #read(query, ending) {
    return Boolean(await readEvents("/api/live", query, ending.signal, (event) => {
      if (event.name === "again") return true;
      this.on(event.name, event.data ? JSON.parse(event.data) : {});
      if (this.now.state !== "live") {
        this.failures = 0;
        this.#say({ state: "live" });
      }
      return undefined;
    }));
  }
}

/** Read one stream of events to its end, or until `each({name, data})` returns something. Return
 * what it returned. A stream that is silent for too long is ended. */
export async function readEvents(path, query, signal, each) {
  const mine = new AbortController(); // so that silence ends only this stream, and not its owner
  const stop = () => mine.abort();
  signal.addEventListener("abort", stop, { once: true });
  let timer = setTimeout(stop, SILENCE_MS);
  try {
    const answer = await request(url(path, query), { signal: mine.signal, headers: { Accept: "text/event-stream" } });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return undefined;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
      const found = split(rest + value);
      rest = found.rest;
      for (const event of found.events) {
        if (signal.aborted) return undefined;
        const said = each(event);
        if (said !== undefined) return said;
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    mine.abort();
  }
}
