// Functions that make elements from values. Text becomes text nodes only, so data of clients cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return the address if a link may have it (this page, this server, or another server by HTTP), otherwise null. */
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

/** Change the text only if it differs, so that screen readers and selections are not disturbed. */
export function setText(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function button(text, call, attributes = {}) {
  return el("button", { type: "button", on: { click: call }, ...attributes }, text);
}
