// What is known of the broker now: one snapshot and the changes since, merged. Topics and channels are Maps, not objects: a topic may
// be called `__proto__`.

export class Model {
  constructor() {
    this.broker = {};
    this.topics = new Map();
    this.alarms = null;
    this.jobs = [];
    this.ready = false; // a snapshot came
    this.full = false; // of all topics, not of one
    this.channelsToo = false;
    this.version = 0;
    this.serverMs = Date.now();
    this.heardAt = performance.now();
  }

  /** The server's clock: ages must not depend on the clock of who looks. */
  now() {
    return this.serverMs + (performance.now() - this.heardAt);
  }

  topic(name) {
    return this.topics.get(name);
  }

  channel(topic, name) {
    return this.topics.get(topic)?.channels?.get(name);
  }

  /** Take an event of the stream in; `query` is what is followed. */
  take(name, data, query) {
    if (name === "snapshot") this.#snapshot(data, query);
    else if (name === "changes") this.#changes(data);
    else if (name === "alarms") this.#raised(data);
    else if (name === "jobs") this.jobs = data.jobs ?? [];
    else return;
    this.version += 1;
  }

  #clock(data) {
    if (typeof data.now_ms !== "number") return;
    this.serverMs = data.now_ms;
    this.heardAt = performance.now();
  }

  #snapshot(data, query) {
    this.#clock(data);
    this.broker = { ...data.broker };
    const named = query?.topic;
    if (named) this.topics.delete(named);
    else this.topics.clear();
    this.full = !named;
    this.channelsToo = Boolean(query?.channels);
    this.#topics(data.topics ?? {});
    this.ready = true;
    if (this.alarms) this.#raised(this.alarms);
  }

  /** Alarms that are raised are marked where they are: `alarms` of a channel, and of its topic all of them. */
  #raised(data) {
    this.alarms = data;
    const of = (topic, channel) => (data.now ?? []).filter((one) => one.topic === topic && (channel === undefined || one.channel === channel));
    for (const [name, topic] of this.topics) {
      topic.alarms = of(name);
      for (const channel of topic.channels?.values() ?? []) channel.alarms = topic.alarms.length ? of(name, channel.name) : [];
    }
  }

  #changes(data) {
    this.#clock(data);
    Object.assign(this.broker, data.broker ?? {});
    this.#topics(data.topics ?? {});
    for (const name of data.gone?.topics ?? []) this.topics.delete(name);
    for (const [topic, channel] of data.gone?.channels ?? []) this.topics.get(topic)?.channels?.delete(channel);
  }

  #topics(changed) {
    for (const [name, fields] of Object.entries(changed)) {
      let topic = this.topics.get(name);
      if (topic === undefined) {
        topic = { name, channels: null };
        this.topics.set(name, topic);
      }
      const { channels, ...rest } = fields;
      Object.assign(topic, rest);
      if (channels === undefined) continue;
      topic.channels ??= new Map();
      for (const [key, one] of Object.entries(channels)) {
        const channel = topic.channels.get(key);
        if (channel === undefined) topic.channels.set(key, { topic: name, name: key, ...one });
        else Object.assign(channel, one);
      }
    }
  }
}

/** May this user do it? `may` is a topic's or channel's letters: a admin, s subscribe, p publish. */
export function may(thing, letter) {
  return typeof thing?.may !== "string" || thing.may.includes(letter);
}

export function isHealthy(thing) {
  return !thing?.health || thing.health === "OK";
}

/** Is one raised? `figure`: of depth or age_s alone. */
export function isAlarm(thing, figure = "") {
  return Boolean(thing?.alarms?.some((one) => !figure || one.figure === figure));
}
