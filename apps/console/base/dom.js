// Functions that create and change elements. Texts are set as text and styles by CSSOM, so no name
// and no body can become markup, and the content security policy needs no exception. There is no
// function that takes HTML. Characters that reverse the direction of the text after them are shown
// by their number, because with them "evil" can be read as "live".

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: `h("td.num.wide", {title: "exact"}, "12", node, [more])`. The properties are
 * `on` {event: handler} and `style` {name: value}. Any other property is an attribute. Null,
 * undefined and false leave it out. */
export function h(spec, props, ...children) {
  const [tag, ...classes] = spec.split(".");
  return fill(document.createElement(tag), classes, props, children);
}

/** Create an SVG element, with the same arguments as `h`. */
export function svg(spec, props, ...children) {
  const [tag, ...classes] = spec.split(".");
  return fill(document.createElementNS(SVG, tag), classes, props, children);
}

function fill(element, classes, props, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "style") {
      for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    } else setAttr(element, name, value);
  }
  add(element, children);
  return element;
}

/** Append children: nodes, texts, numbers, or lists of these. Null, undefined and false are left
 * out. */
export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : marked(String(child)));
  }
  return element;
}

const REVERSING = /[\u202a-\u202e\u2066-\u2069]/g;

/** Return the text with the characters that change its direction shown as "⟨U+202E⟩". */
function marked(text) {
  return text.replace(REVERSING, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase()}⟩`);
}

/** Replace all children by these. */
export function put(element, ...children) {
  element.replaceChildren();
  return add(element, ...children);
}

/** Set an attribute if its value changes. Null, undefined and false remove the attribute. */
export function setAttr(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Set the text of an element if it changes. An unchanged text causes no layout and no painting. */
export function setText(element, text) {
  const said = text === null || text === undefined ? "" : marked(String(text));
  const only = element.firstChild;
  if (only !== null && only === element.lastChild && only.nodeType === Node.TEXT_NODE) {
    if (only.data !== said) only.data = said;
  } else if (only !== null || said !== "") element.textContent = said;
}

/** Set a short text whose exact form is shown on hover. `part` is {text, exact} of format.js, or a
 * text. */
export function setPart(element, part) {
  if (typeof part === "string") return setPart(element, { text: part });
  setText(element, part.text);
  setAttr(element, "title", part.exact !== part.text ? part.exact : null);
}

export function setClass(element, name, on) {
  if (element.classList.contains(name) !== Boolean(on)) element.classList.toggle(name, Boolean(on));
}

export function show(element, on) {
  if (element.hidden === Boolean(on)) element.hidden = !on;
}

/** Announce a text to users of screen readers. */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) setText(place, text);
}

let numbered = 0;

/** Return an id that no other element has. */
export function freshId(prefix) {
  numbered += 1;
  return `${prefix}-${numbered}`;
}
