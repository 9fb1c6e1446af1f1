// Elements without markup from strings: what others named is always text.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element; `class` and others are attributes, functions are listeners, `style` sets properties one by one. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same in SVG. */
export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "style") for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A sentence whose parts between backquotes are code. */
export function prose(sentence) {
  return sentence.split(/`([^`]+)`/).map((part, index) => (index % 2 === 1 ? element("code", {}, part) : part));
}

/** Changes a text only where it is another one: what stays the same is not read out again, nor drawn. */
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Keeps the children of `parent` equal to `items`: `make` gives `{ node, update }` for a new one, and those that stay keep
 * their element, so that the focus and a selection stay where they are. Of two with one key the second is another item.
 */
export function keep(parent, items, keyOf, make) {
  const kept = parent.kept ?? new Map();
  const next = new Map();
  let at = parent.firstElementChild;
  for (const item of items) {
    let key = String(keyOf(item));
    while (next.has(key)) key += " ";
    const row = kept.get(key) ?? make(item);
    kept.delete(key);
    next.set(key, row);
    row.update(item);
    if (row.node === at) at = at.nextElementSibling;
    else parent.insertBefore(row.node, at);
  }
  for (const row of kept.values()) row.node.remove();
  parent.kept = next;
}

/** A bar that says how full something is; `update(share, words, marks)` with shares from 0 to 1. */
export function meter(tone) {
  const fill = element("div", { class: "fill" });
  const node = element("div", { class: `meter ${tone}`, role: "meter", "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const update = (share, words, marks = []) => {
    const percent = Math.round(1000 * Math.min(1, Math.max(0, share))) / 10;
    fill.style.setProperty("width", `${percent}%`);
    node.setAttribute("aria-valuenow", percent);
    node.setAttribute("aria-label", words);
    node.querySelectorAll(".mark").forEach((mark) => mark.remove());
    for (const { at, words: title } of marks) {
      if (at > 0 && at < 1) node.append(element("div", { class: "mark", title, style: { left: `${100 * at}%` } }));
    }
  };
  return { node, update };
}
