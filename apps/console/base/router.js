// Where we are, in the address after the `#`: a page can be linked to, reloaded and gone back from, and the server needs to know
// nothing of pages. Names are percent-encoded: `#` (of `#ephemeral`), `/` and `%` may stand in them.

/** The address of a page: `link("topics", "a#ephemeral")` is "#/topics/a%23ephemeral". A last object is the query. */
export function link(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : null;
  const path = `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
  const asked = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return asked.length ? `${path}?${new URLSearchParams(asked)}` : path;
}

/** {parts, query} of an address. What cannot be decoded is a page that does not exist. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter((part) => part !== "");
  try {
    return { parts: parts.map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query)) };
  } catch {
    return { parts: ["?"], query: {} };
  }
}

/** Match parts against patterns like "topics/:topic/channels/:channel"; the first that fits, with its parameters. */
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

/** Call `arrive(where)` now and whenever the address changes. */
export function watch(arrive) {
  const go = () => arrive(parse(location.hash));
  window.addEventListener("hashchange", go);
  go();
}

export function go(address) {
  location.hash = address;
}

/** Change the query of this page without a step in the history. */
export function replace(address) {
  history.replaceState(null, "", address);
}
