// The theme, light or dark: the system's, or the one that the user chose. The choice is stored in
// this browser. theme.css defines the colours as pairs.

const KEY = "zsq.theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

export function theme() {
  try {
    const kept = localStorage.getItem(KEY);
    return kept in NEXT ? kept : "system";
  } catch {
    return "system"; // the browser stores nothing
  }
}

export function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // the theme applies to this page only
  }
}

/** Switch to the next theme (system, light, dark) and return its name. */
export function nextTheme() {
  const name = NEXT[theme()];
  setTheme(name);
  return name;
}
