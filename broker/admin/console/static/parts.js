// Parts of pages: tables that are updated in place, charts, dialogs, and notifications.

import { ask } from "./api.js";
import { button, el, setText, svg } from "./dom.js";
import { count, plural } from "./format.js";

const SAMPLES_MAX = 150;
const NAMES_MAX = 2000;
const SAID_MAX = 4;

// ---- notifications

/** Show a notification. A failure stays until the user closes it. */
export function say(text, isFailure = false) {
  const region = document.getElementById("said");
  const note = el("div", { class: isFailure ? "note bad" : "note", role: isFailure ? "alert" : null });
  const close = button("×", () => note.remove(), { "aria-label": "Close this note", class: "plain" });
  note.append(el("span", {}, text), close);
  region.append(note);
  while (region.children.length > SAID_MAX) region.firstChild.remove();
  if (!isFailure) setTimeout(() => note.remove(), 10_000);
}

/** Call `work` for a button, and show its error, if any. Returns whether it succeeded. */
export async function attempt(work) {
  try {
    await work();
    return true;
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
    return false;
  }
}

// ---- tables

/**
 * Make a table whose rows are identified by `key` and updated in place, so that focus and selection stay.
 * A column: `title`; `text(row)`, or `make(row, current)` for a node that is made once, with `renew(node, row)`;
 * `kind`: "number", "wide" (left out on narrow screens), "mono".
 */
export function table({ caption, columns, key, empty = "None.", hidesCaption = false }) {
  const head = el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.kind },
    typeof column.title === "string" ? column.title : column.title())));
  const body = el("tbody");
  const nothing = el("p", { class: "empty", hidden: true }, empty);
  const made = el("table", {},
    el("caption", { class: hidesCaption ? "hidden" : null }, caption), el("thead", {}, head), body);
  const frame = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${caption} (table)` }, made);
  const rows = new Map();

  function begin(row) {
    const known = { row };
    const current = () => known.row;
    known.cells = columns.map((column) => {
      const tag = column.isHead ? "th" : "td";
      const cell = el(tag, { class: column.kind, scope: column.isHead ? "row" : null });
      if (column.make) {
        known[column.name ?? column.title] = column.make(row, current);
        cell.append(known[column.name ?? column.title]);
      }
      return cell;
    });
    known.line = el("tr", {}, known.cells);
    return known;
  }

  function update(found) {
    const wanted = new Set();
    let place = body.firstChild;
    for (const row of found) {
      const name = key(row);
      if (wanted.has(name)) continue;
      wanted.add(name);
      let known = rows.get(name);
      if (!known) rows.set(name, (known = begin(row)));
      known.row = row;
      columns.forEach((column, number) => {
        if (column.text) setText(known.cells[number], column.text(row));
        if (column.renew) column.renew(known[column.name ?? column.title], row);
      });
      if (known.line !== place) body.insertBefore(known.line, place);
      else place = place.nextSibling;
    }
    for (const [name, known] of rows) {
      if (!wanted.has(name)) {
        known.line.remove();
        rows.delete(name);
      }
    }
    nothing.hidden = rows.size > 0;
    frame.hidden = rows.size === 0;
  }

  return { element: el("div", { class: "table" }, frame, nothing), update };
}

/** Make buttons for the pages of a list; `go()` shows the page after `after`. */
export function pager(go) {
  const former = [];
  let after = "";
  let following = null;
  const told = el("span", { class: "total" });
  const back = button("Previous page", () => turn(former.pop() ?? ""), { disabled: true });
  const next = button("Next page", () => {
    former.push(after);
    turn(following);
  }, { disabled: true });
  function turn(place) {
    after = place;
    go();
  }
  return {
    element: el("div", { class: "pager" }, told, back, next),
    get after() {
      return after;
    },
    begin() {
      former.length = 0;
      after = "";
    },
    update(page, what = "row") {
      following = page.following;
      setText(told, page.total === undefined ? "" : plural(page.total, what));
      back.disabled = former.length === 0 && after === "";
      next.disabled = following === null || following === undefined;
    },
  };
}

/** Make a list of names and values that is updated in place. */
export function facts(label, kind = "") {
  const list = el("dl", { class: `facts ${kind}`, "aria-label": label });
  const known = new Map();
  return {
    element: list,
    update(pairs) {
      for (const [name, value] of pairs) {
        let line = known.get(name);
        if (!line) {
          line = el("div", {}, el("dt", {}, name), el("dd"));
          known.set(name, line);
          list.append(line);
        }
        const place = line.lastChild;
        if (value instanceof Node) {
          if (place.firstChild !== value) place.replaceChildren(value);
        } else {
          setText(place, value ?? "–");
        }
        line.hidden = value === undefined;
      }
    },
  };
}

// ---- figures over time, kept only in this page

const histories = new Map();

/** Record a figure, and return its values of the last minutes, as [milliseconds, figure]. */
export function note(name, value) {
  let samples = histories.get(name);
  if (!samples) {
    if (histories.size >= NAMES_MAX) histories.delete(histories.keys().next().value);
    histories.set(name, (samples = []));
  }
  const last = samples.at(-1);
  if (last && last[1] > value && name.startsWith("total ")) samples.length = 0; // the broker was restarted
  samples.push([Date.now(), value]);
  if (samples.length > SAMPLES_MAX) samples.shift();
  return samples;
}

/** Return the growth of a total per second, over about the last ten seconds; null: not known yet. */
export function growth(name, value, windowMs = 10_000) {
  const samples = note(`total ${name}`, value);
  const now = samples.at(-1);
  const then = samples.findLast((each) => now[0] - each[0] >= windowMs) ?? samples[0];
  return now[0] > then[0] ? (now[1] - then[1]) / ((now[0] - then[0]) / 1000) : null;
}

/** Make a small line chart of the last minutes. */
export function sparkline(width = 120, height = 24) {
  const line = svg("path", { class: "line" });
  const area = svg("path", { class: "area" });
  const drawing = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none",
    role: "img", "aria-label": "no figures yet" }, area, line);
  return {
    element: drawing,
    update(samples, what) {
      const values = samples.map((each) => each[1]);
      const most = Math.max(...values);
      const least = Math.min(0, ...values);
      const begin = samples[0][0];
      const span = Math.max(samples.at(-1)[0] - begin, 1);
      const points = samples.map(([at, value]) => {
        const x = samples.length === 1 ? width : ((at - begin) / span) * width;
        const y = height - 1.5 - ((value - least) / (most - least || 1)) * (height - 3);
        return `${x.toFixed(1)},${y.toFixed(1)}`;
      });
      if (points.length === 1) points.unshift(`0,${points[0].split(",")[1]}`);
      line.setAttribute("d", `M${points.join("L")}`);
      area.setAttribute("d", `M0,${height}L${points.join("L")}L${width},${height}Z`);
      const shown = (value) => (value >= 10 || Number.isInteger(value) ? count(value) : value.toFixed(1));
      drawing.setAttribute("aria-label", `${what}: ${shown(Math.min(...values))} to ${shown(most)}, `
        + `now ${shown(values.at(-1))}`);
    },
  };
}

// ---- dialogs

let questions = 0;

/** Show a dialog before an action. Returns the values of its fields, or null if the user cancels. */
export function question({ title, text, action, fields = [], isDanger = true, more = null }) {
  return new Promise((resolve) => {
    const number = ++questions;
    const inputs = fields.map((field, index) => {
      const id = `q${number}-${index}`;
      const input = field.options
        ? el("select", { id }, field.options.map(([value, name]) => el("option", { value }, name)))
        : el("input", { id, type: field.type ?? "text", required: field.required, min: field.min, max: field.max,
          step: field.step, maxlength: field.maxlength, autocomplete: "off", spellcheck: "false" });
      if (field.type === "checkbox") input.checked = field.value;
      else if (field.value !== undefined) input.value = field.value;
      const label = el("label", { for: id }, field.label);
      return { field, input, line: el("p", { class: field.type === "checkbox" ? "check" : "field" },
        field.type === "checkbox" ? [input, label] : [label, input]) };
    });
    const form = el("form", { method: "dialog" },
      el("h2", { id: `q${number}` }, title), el("p", { id: `q${number}-text`, class: "asked" }, text), more,
      inputs.map((each) => each.line),
      el("div", { class: "buttons" },
        button("Cancel", () => dialog.close()),
        el("button", { type: "submit", class: isDanger ? "danger" : "main" }, action)));
    const dialog = el("dialog", { "aria-labelledby": `q${number}`, "aria-describedby": `q${number}-text` }, form);
    let said = null;
    form.addEventListener("submit", () => {
      said = Object.fromEntries(inputs.map(({ field, input }) =>
        [field.name, field.type === "checkbox" ? input.checked : input.value]));
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(said);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// ---- tasks

export function taskSentence(task) {
  const counts = Object.entries(task.counts).map(([what, number]) => `${count(number)} ${what.replaceAll("_", " ")}`);
  return [`${task.kind} ${task.destination}: ${task.state}`, counts.join(", "), task.error, ...task.notes]
    .filter(Boolean).join(" – ");
}

/** Show the progress of a task in `place` until its end, and then a notification. */
export async function follow(task, place, signal) {
  const told = el("span", {}, taskSentence(task));
  const stop = button("Stop", () => attempt(() => ask(`/tasks/${task.id}`, { method: "DELETE" })));
  const line = el("div", { class: "task" }, told, stop);
  if (task.state === "running") place.append(line);
  try {
    while (task.state === "running") {
      task = await ask(`/tasks/${task.id}`, { query: { wait: 1 }, signal });
      setText(told, taskSentence(task));
    }
    say(taskSentence(task), task.state === "failed");
  } finally {
    line.remove();
  }
  return task;
}


