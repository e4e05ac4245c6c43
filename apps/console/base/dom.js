// Making and changing elements. Text goes in as text and styles by CSSOM, so no name and no body can become markup, and the
// content security policy needs no exception. There is no way to pass HTML, on purpose.

const SVG = "http://www.w3.org/2000/svg";

/** `h("td.num.wide", {title: "exact"}, "12", node, [more])`: an element. Properties: `on` {event: handler}, `style` {name: value},
 * anything else is an attribute; null, undefined and false leave it out. */
export function h(spec, props, ...children) {
  const [tag, ...classes] = spec.split(".");
  return fill(document.createElement(tag), classes, props, children);
}

/** The same in SVG. */
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

/** Append children: nodes, texts, numbers, lists of them; null, undefined and false are nothing. */
export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Take all children out and put these in. */
export function put(element, ...children) {
  element.replaceChildren();
  return add(element, ...children);
}

/** Set an attribute, only if it changes; null, undefined and false remove it. */
export function setAttr(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Set the text of an element, only if it changes: what did not change is neither laid out nor painted again. */
export function setText(element, text) {
  const said = text === null || text === undefined ? "" : String(text);
  const only = element.firstChild;
  if (only !== null && only === element.lastChild && only.nodeType === Node.TEXT_NODE) {
    if (only.data !== said) only.data = said;
  } else if (only !== null || said !== "") element.textContent = said;
}

/** A short text whose exact form shows on hover: `part` is {text, exact} of format.js, or a text. */
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

/** A text for those who listen and do not look. */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) setText(place, text);
}

let numbered = 0;

/** An id that is used once. */
export function freshId(prefix) {
  numbered += 1;
  return `${prefix}-${numbered}`;
}
