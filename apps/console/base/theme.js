// Light and dark: as the system says, or as chosen here; kept in this browser. The colours themselves are pairs in theme.css.

const KEY = "zsq.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

export function theme() {
  try {
    const kept = localStorage.getItem(KEY);
    return kept in NEXT ? kept : "system";
  } catch {
    return "system"; // a browser that keeps nothing
  }
}

export function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // it holds for this page
  }
}

/** On to the next of system, light, dark; returns its name. */
export function nextTheme() {
  const name = NEXT[theme()];
  setTheme(name);
  return name;
}
