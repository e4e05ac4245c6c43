// Set the chosen theme before anything is painted, so that a dark console does not flash white.
try {
  document.documentElement.dataset.theme = localStorage.getItem("zsq.theme") || "system";
} catch {
  // the browser stores nothing: the system's theme is used
}
