// Tables that stay fast with a thousand rows. Rows are added as far as the user has scrolled and
// filled when they become visible. A cell is changed only if its text has changed. Sorting and
// filtering include all rows. The keyboard moves between rows.
//
// Rows do not move while the pointer or the focus is in the table: an order that is a few seconds
// old is better than a row that moves away under the pointer. Screen readers get a real table. The
// keys j and k move between the links of the rows (keys.js).

import { add, h, setAttr, setClass, setText, show } from "../base/dom.js";
import { amend } from "../base/router.js";

const SORT_MS = 4000;
const FIRST_ROWS = 40; // filled at once, before the browser has reported which rows are visible
// added at a time, because the layout of a thousand rows takes as long as everything else together
const ROWS_STEP = 150;

export class Table {
  /** `columns` is [{key, title, hint, num, width, rank, value(row), make(cell, row), show(cell,
   * row), head}]. `head` is an element instead of the title. Columns of rank 1 to 3 are hidden on narrow screens, 3 first. `id(row)` identifies a row.
   * `words(row)` is the text that the filter searches. `sort` is [key, 1 or -1]. `empty` is an
   * element. `query` is the query of the page's address. With it, the order is kept there, as
   * sort=KEY or sort=-KEY. */
  constructor({ label, columns, id, words = null, sort = null, empty = null, fixed = true, query = null }) {
    const [, minus, key] = /^(-?)(.+)$/.exec(query?.sort ?? "") ?? [];
    const known = columns.some((one) => one.key === key && one.value);
    Object.assign(this, { columns, id, words, sort: known ? [key, minus ? -1 : 1] : sort, empty, inAddress: query !== null });
    this.rows = new Map(); // id -> {id, data, tr (null: not added yet), cells, seen, made}
    this.most = ROWS_STEP;
    this.asked = "";
    this.state = null; // {text, holds(row)}: only these rows are shown
    this.sortedAt = 0;
    this.heads = new Map();
    this.body = h("tbody");
    this.none = h("div.table-none.quiet", { hidden: true });
    this.table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, columns.map((column) => this.#head(column)))), this.body);
    setClass(this.table, "fixed", fixed);
    this.more = h("div.table-none.quiet", { hidden: true });
    this.element = h("div.table", { "data-list": true }, this.table, this.more, this.none, empty);
    if (empty) show(empty, false);
    this.watch = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "240px 0px" });
    this.end = new IntersectionObserver(([entry]) => entry.isIntersecting && this.#grow(), { rootMargin: "600px 0px" });
    this.end.observe(this.more);
  }

  close() {
    this.watch.disconnect();
    this.end.disconnect();
  }

  #head(column) {
    const title = h("span", {}, column.title);
    const inner = column.value
      ? h("button", { type: "button", title: column.hint, on: { click: () => this.order(column.key) } }, title, h("i.arrow", { "aria-hidden": "true" }))
      : (column.head ?? h("span.th", { title: column.hint }, title));
    const head = h("th", { scope: "col", class: classes(column), style: column.width ? { width: column.width } : {} }, inner);
    this.heads.set(column.key, head);
    return head;
  }

  /** Sort by a column. A second call reverses the order. Numbers begin with the largest. */
  order(key) {
    const column = this.columns.find((one) => one.key === key);
    const first = column.num ? -1 : 1;
    this.sort = [key, this.sort?.[0] === key ? -this.sort[1] : first];
    if (this.inAddress) amend({ sort: `${this.sort[1] < 0 ? "-" : ""}${key}` });
    this.#place(true);
  }

  filter(text) {
    this.asked = text.trim().toLowerCase();
    this.#place(true);
  }

  /** Show only the rows for which `state.holds(row)` is true, or all rows for null. */
  only(state) {
    this.state = state;
    this.#place(true);
  }

  /** Return the rows that match the filter and the state, also those that are not added yet. */
  matching() {
    return this.#wanted();
  }

  /** Set the rows of the table. */
  update(all) {
    const there = new Set();
    let came = false;
    for (const data of all) {
      const id = this.id(data);
      there.add(id);
      const row = this.rows.get(id);
      if (row) row.data = data;
      else {
        this.rows.set(id, { id, data, tr: null, cells: null, seen: false, made: false });
        came = true;
      }
    }
    for (const [id, row] of this.rows) {
      if (there.has(id)) continue;
      if (row.tr) {
        this.watch.unobserve(row.tr);
        row.tr.remove();
      }
      this.rows.delete(id);
      came = true;
    }
    this.#place(came || this.shown === undefined);
    this.refresh();
  }

  /** Fill the visible rows again, because some values change with the clock alone. */
  refresh() {
    if (this.state) this.#place(false); // a row may come into the state or leave it
    for (const row of this.rows.values()) if (row.seen) this.#fill(row);
  }

  get size() {
    return this.rows.size;
  }

  #make(row) {
    row.cells = this.columns.map((column) => h("td", { class: classes(column) }));
    row.tr = h("tr", {}, row.cells);
    row.tr.row = row;
    this.watch.observe(row.tr);
  }

  /** Add rows, because the user has scrolled near the end. */
  #grow() {
    if (this.most >= this.rows.size) return;
    this.most += ROWS_STEP;
    this.#place(true);
    this.end.unobserve(this.more); // then the observer reports again if the end is still visible
    this.end.observe(this.more);
  }

  #fill(row) {
    this.columns.forEach((column, at) => {
      const cell = row.cells[at];
      if (!row.made) column.make?.(cell, row.data);
      column.show?.(cell, row.data, row.tr);
    });
    row.made = true;
  }

  #seen(entries) {
    for (const entry of entries) {
      const row = entry.target.row;
      row.seen = entry.isIntersecting;
      if (row.seen) this.#fill(row);
    }
  }

  #place(now) {
    const held = this.body.matches(":hover") || this.body.contains(document.activeElement);
    const due = performance.now() - this.sortedAt > SORT_MS && !held;
    if (!now && !due) return;
    this.sortedAt = performance.now();
    const wanted = this.#wanted();
    const shown = wanted.slice(0, this.most);
    for (const row of shown) if (!row.tr) this.#make(row);
    let cursor = this.body.firstChild;
    for (const row of shown) {
      if (row.tr === cursor) cursor = cursor.nextSibling;
      else this.body.insertBefore(row.tr, cursor);
    }
    while (cursor) {
      const next = cursor.nextSibling;
      cursor.remove();
      cursor = next;
    }
    for (const row of shown.slice(0, FIRST_ROWS)) if (!row.made) this.#fill(row);
    this.shown = wanted.length;
    show(this.more, wanted.length > shown.length);
    setText(this.more, `${shown.length} of ${wanted.length}`);
    setAttr(this.table, "aria-rowcount", wanted.length + 1);
    for (const [key, head] of this.heads) setAttr(head, "aria-sort", this.sort?.[0] === key ? (this.sort[1] > 0 ? "ascending" : "descending") : null);
    show(this.table, this.rows.size > 0);
    if (this.empty) show(this.empty, this.rows.size === 0);
    show(this.none, this.rows.size > 0 && wanted.length === 0);
    setText(this.none, this.asked ? `Nothing matches “${this.asked}”. Press Esc to clear the filter.` : `Nothing is in the state “${this.state?.text}”.`);
  }

  #wanted() {
    let found = [...this.rows.values()];
    if (this.asked && this.words) {
      const asked = this.asked.split(/\s+/);
      found = found.filter((row) => {
        const words = this.words(row.data).toLowerCase();
        return asked.every((one) => words.includes(one));
      });
    }
    if (this.state) found = found.filter((row) => this.state.holds(row.data));
    if (!this.sort) return found;
    const [key, way] = this.sort;
    const { value } = this.columns.find((column) => column.key === key);
    return found.sort((a, b) => way * compare(value(a.data), value(b.data)) || compare(a.id, b.id));
  }
}

function classes(column) {
  return [column.num && "num", column.rank && `rank-${column.rank}`, column.key && `c-${column.key}`].filter(Boolean).join(" ");
}

/** Compare numbers by size, and texts by letters and the numbers in them. An unknown value is the
 * smallest. */
function compare(a, b) {
  const none = (value) => value === null || value === undefined;
  if (none(a) || none(b)) return Number(none(b)) - Number(none(a));
  if (typeof a === "number" && typeof b === "number") return a - b;
  return words.compare(String(a), String(b));
}

const words = new Intl.Collator("en", { numeric: true });

/** Return a field that filters a table, with its key. */
export function filterField(table, label, changed = () => {}) {
  const input = h("input", { type: "search", placeholder: label, "aria-label": label, autocomplete: "off", spellcheck: "false", "data-filter": true });
  input.addEventListener("input", () => {
    table().filter(input.value);
    changed(input.value);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && input.value) {
      event.stopPropagation();
      input.value = "";
      input.dispatchEvent(new Event("input"));
    }
  });
  return h("label.search", {}, input, h("kbd", { "aria-hidden": "true" }, "/"));
}

/** Return a choice of a state that filters a table, as {element, choose(key)}. `states` is {key: {text,
 * holds(row)}}. The choice is kept in the address, as state=KEY. */
export function stateField(table, states, changed = () => {}) {
  const list = h("select", { "aria-label": "State" }, h("option", { value: "" }, "all states"), Object.entries(states).map(([key, { text }]) => h("option", { value: key }, text)));
  const take = () => {
    table().only(states[list.value] ?? null);
    changed();
  };
  list.addEventListener("change", () => {
    amend({ state: list.value });
    take();
  });
  const choose = (key) => {
    if (!(key in states)) return;
    list.value = key;
    take();
  };
  return { element: list, choose };
}

/** Return a panel with a title, tools and a table. */
export function tablePanel(title, table, ...tools) {
  return h("section.panel", { "aria-label": title }, h("header", {}, h("h2", {}, title), tools), table.element);
}

/** Return placeholder rows that show that data is being loaded. */
export function skeleton(rows = 6) {
  const body = h("div.skeleton", { "aria-hidden": "true" });
  for (let at = 0; at < rows; at += 1) add(body, h("div.skeleton-row", {}, h("span.waiting", {}, "x"), h("span.waiting", {}, "x"), h("span.waiting", {}, "x")));
  return body;
}

