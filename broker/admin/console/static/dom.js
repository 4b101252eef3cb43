// Elements, made of values. Text becomes text nodes and nothing else: what a client sent cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An address that a link may have: of this page, of this server, or of another one by http. */
export function safeAddress(address) {
  if (typeof address !== "string" || /^[#/]/.test(address)) return address ?? null;
  try {
    return ["http:", "https:"].includes(new URL(address).protocol) ? address : null;
  } catch {
    return null;
  }
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
    } else if (name === "href") {
      const address = safeAddress(value);
      if (address !== null) made.setAttribute("href", address);
    } else {
      made.setAttribute(name, value === true ? "" : String(value));
    }
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Change the text only where it is another one: screen readers and selections are left alone. */
export function setText(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function button(text, call, attributes = {}) {
  return el("button", { type: "button", on: { click: call }, ...attributes }, text);
}
