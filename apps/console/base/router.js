// The current page, in the part of the address after the `#`. So a page can be linked to, reloaded
// and left by the back button, and the server does not need to know the pages. Names are
// percent-encoded, because they may contain `#` (in `#ephemeral`), `/` and `%`.

/** Return the address of a page: `link("topics", "a#ephemeral")` is "#/topics/a%23ephemeral". If
 * the last argument is an object, it is the query. */
export function link(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : null;
  const path = `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
  const asked = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return asked.length ? `${path}?${new URLSearchParams(asked)}` : path;
}

/** Return {parts, query} of an address. An address that cannot be decoded becomes a page that does
 * not exist. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter((part) => part !== "");
  try {
    return { parts: parts.map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query)) };
  } catch {
    return { parts: ["?"], query: {} };
  }
}

/** Match parts against patterns such as "topics/:topic/channels/:channel". Return the page of the
 * first pattern that fits, with its parameters. */
export function match(routes, parts) {
  for (const [pattern, page] of Object.entries(routes)) {
    const wanted = pattern.split("/").filter((part) => part !== "");
    if (wanted.length !== parts.length) continue;
    const params = {};
    const fits = wanted.every((part, at) => {
      if (!part.startsWith(":")) return part === parts[at];
      params[part.slice(1)] = parts[at];
      return true;
    });
    if (fits) return { page, params };
  }
  return null;
}

let shown = ""; // the address of the page that is shown
const scrolled = new Map(); // entry of the history -> how far its page was scrolled
let entry = 0; // a number that no other entry of the history has

/** Call `arrive(where, top)` now and whenever the address changes. `top` is how far the page was
 * scrolled when the user left it, if Back or Forward returns to it, and otherwise 0. */
export function watch(arrive) {
  history.scrollRestoration = "manual";
  const go = () => {
    if (shown !== "") scrolled.set(entry, window.scrollY);
    shown = location.hash;
    entry = history.state?.entry ?? 0;
    if (!entry) {
      entry = Math.random();
      history.replaceState({ entry }, "");
    }
    arrive(parse(shown), scrolled.get(entry) ?? 0);
  };
  window.addEventListener("hashchange", go);
  go();
}

export function go(address) {
  location.hash = address;
}

/** Change the query of this page without a new entry in the history. Nothing happens if the user is
 * leaving the page: the address changes at once, but `hashchange` comes later, and an answer for
 * the old page can arrive between them. It would take the user back. */
export function replace(address) {
  if (location.hash !== shown) return;
  history.replaceState(history.state, "", address);
  shown = location.hash;
}

/** Change some values in the query of this page, as `replace` does. An empty value leaves it out. */
export function amend(changes) {
  const { parts, query } = parse(location.hash);
  replace(link(...parts, { ...query, ...changes }));
}
