// Before anything is painted: the theme that was chosen here, so that a dark console does not flash white.
try {
  document.documentElement.dataset.theme = localStorage.getItem("zsq.theme") || "system";
} catch {
  // a browser that keeps nothing: as the system says
}
