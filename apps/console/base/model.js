// The current state of the broker: a snapshot, merged with the changes since then. Topics and
// channels are Maps and not objects, because a topic may have the name `__proto__`.

export class Model {
  constructor() {
    this.broker = {};
    this.topics = new Map();
    this.alarms = null;
    this.jobs = [];
    this.ready = false; // a snapshot has arrived
    this.answered = false; // the broker has answered about what the page follows
    this.full = false; // the snapshot has all topics, not only one
    this.channelsToo = false;
    this.version = 0;
    this.serverMs = Date.now();
    this.heardAt = performance.now();
  }

  /** Return the time of the server's clock. Ages must not depend on the clock of the user's
   * machine. */
  now() {
    return this.serverMs + (performance.now() - this.heardAt);
  }

  topic(name) {
    return this.topics.get(name);
  }

  channel(topic, name) {
    return this.topics.get(topic)?.channels?.get(name);
  }

  /** Process an event of the stream. `query` is the query that the stream follows. */
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
    this.answered = true;
    this.channelsToo = Boolean(query?.channels);
    this.#topics(data.topics ?? {});
    this.ready = true;
    if (this.alarms) this.#raised(this.alarms);
  }

  /** Store the raised alarms in the rows: a channel's `alarms` are its own, and a topic's `alarms`
   * are those of all its channels. */
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

/** Return true if the user may do an action. `may` has the letters that a topic or channel permits:
 * a admin, s subscribe, p publish. */
export function may(thing, letter) {
  return typeof thing?.may !== "string" || thing.may.includes(letter);
}

export function isHealthy(thing) {
  return !thing?.health || thing.health === "OK";
}

/** Return true if an alarm is raised. `kind` restricts this to depth or age_s. */
export function isAlarm(thing, kind = "") {
  return Boolean(thing?.alarms?.some((one) => !kind || one.kind === kind));
}
