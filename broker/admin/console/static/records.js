// Events of failovers, tasks of operators, users and their rights.

import { ask } from "./api.js";
import { button, el, setText, svg } from "./dom.js";
import { count, duration, time, ZONE } from "./format.js";
import { attempt, table, taskSentence } from "./parts.js";

const POLL_SECONDS = 3;
const EVENTS = 500;

// ---- failovers

const ROLE_AFTER = {
  started: "starting", standby: "standby", master: "master", listening: "master", demoted: "demoted", ended: "ended",
  lost: "demoted", cut: "demoted", drained: "demoted", "lock-released": "demoted", "fell-silent": "ended",
};
// The steps of a take-over, by the event that ends each.
const STEPS = [["fenced", "Fence"], ["replayed", "Replay"], ["store-open", "Load"], ["listening", "Listen"],
  ["first-client", "First client"], ["first-receipt", "First receipt"]];

function sinceBoot(event, former) {
  return event.boot_id === former.boot_id ? event.boot_seconds - former.boot_seconds
    : (event.wall_ms - former.wall_ms) / 1000;
}

/** Return the take-overs of this broker, the latest first, each with the duration of its steps in seconds. */
export function takeovers(events) {
  const found = [];
  let current = null;
  for (const event of events) {
    if (event.kind === "lock-taken") {
      current = { taken: event, epoch: 0, steps: {}, reached: event };
      found.unshift(current);
    } else if (current && STEPS.some(([kind]) => kind === event.kind) && !(event.kind in current.steps)) {
      current.steps[event.kind] = Math.max(0, sinceBoot(event, current.reached));
      if (event.kind === "listening") current.served = sinceBoot(event, current.taken);
      current.epoch = Math.max(current.epoch, event.epoch);
      current.reached = event;
    } else if (["demoted", "ended", "lock-released"].includes(event.kind)) {
      current = null;
    }
  }
  return found;
}

/** Return the roles of this broker over time: [role, from, to] in milliseconds. */
function roles(events, now) {
  const spans = [];
  for (const event of events) {
    const role = ROLE_AFTER[event.kind];
    const last = spans.at(-1);
    if (!role || last?.[0] === role) continue;
    if (last) last[2] = event.wall_ms;
    spans.push([role, event.wall_ms, now]);
  }
  return spans;
}

function drawRoles(drawing, spans, list) {
  const [begin, end] = [spans[0]?.[1] ?? 0, spans.at(-1)?.[2] ?? 1];
  const width = 1000;
  const at = (moment) => ((moment - begin) / Math.max(end - begin, 1)) * width;
  drawing.replaceChildren(...spans.map(([role, from, to]) => svg("rect", { class: role, x: at(from).toFixed(1), y: 0,
    width: Math.max(at(to) - at(from), 1).toFixed(1), height: 20 })));
  drawing.setAttribute("aria-label", spans.map(([role, from, to]) =>
    `${role} for ${duration((to - from) / 1000)} from ${time(from)}`).slice(-10).join("; "));
  const known = [...new Set(spans.map(([role]) => role))];
  list.replaceChildren(...known.map((role) => el("li", { class: role }, role)));
}

export function showEvents(place) {
  const drawing = svg("svg", { class: "roles", viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "img" });
  const legend = el("ul", { class: "legend" });
  const other = el("span");
  const span = el("p", { class: "lead" });
  const terms = table({
    caption: "Take-overs of this broker", key: (row) => `${row.taken.wall_ms} ${row.taken.boot_seconds}`,
    empty: "No take-over is recorded on this broker.",
    columns: [
      { title: "Lock taken", isHead: true, text: (row) => time(row.taken.wall_ms, true) },
      { title: "Epoch", kind: "number", text: (row) => count(row.epoch) },
      { title: "Lock to service", kind: "number", text: (row) => duration(row.served) },
      ...STEPS.map(([kind, title]) => ({ title, kind: "number wide", text: (row) => duration(row.steps[kind]) })),
    ],
  });
  const list = table({
    caption: "Events, the latest first", key: (row) => row.key,
    columns: [
      { title: "Time", isHead: true, kind: "mono", text: (row) => time(row.wall_ms, true) },
      { title: "Event", text: (row) => row.kind },
      { title: "Epoch", kind: "number wide", text: (row) => count(row.epoch) },
      { title: "After the previous one", kind: "number wide", text: (row) => duration(row.after) },
      { title: "Facts", kind: "mono reason", text: (row) => Object.entries(row.facts).map(([name, value]) =>
        `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ") },
    ],
  });
  place.content.append(el("p", {}, "Events that are recorded on this broker. Times are in the zone ", ZONE, ". ", other,
    " For one timeline of both brokers, with the length of each outage, use ", el("code", {}, "tandemmq failover explain"), "."),
  el("h2", {}, "Roles"), span, drawing, legend, terms.element, list.element);
  let shown = "";
  place.every(POLL_SECONDS, async () => {
    const answer = await ask("/events", { query: { last: EVENTS }, signal: place.signal });
    const holder = answer.holder;
    const address = `${holder?.name}${holder?.admin}`;
    if (shown !== address) {
      shown = address;
      if (holder && holder.name !== answer.name) {
        other.replaceChildren("The master's events are on its own console: ", place.holderLink(holder), ".");
      } else {
        setText(other, "The console of the other broker shows its events.");
      }
    }
    const events = answer.events;
    const spans = roles(events, answer.now.wall_ms);
    setText(span, spans.length === 0 ? "" : `From ${time(spans[0][1])} to ${time(answer.now.wall_ms)}.`);
    drawRoles(drawing, spans, legend);
    terms.update(takeovers(events));
    list.update(events.map((event, number) => ({ ...event, key: `${event.boot_id} ${event.boot_seconds} ${event.kind}`,
      after: number === 0 ? undefined : sinceBoot(event, events[number - 1]) })).reverse());
  });
}

// ---- tasks

export function showTasks(place) {
  const list = table({
    caption: "Tasks of operators, the latest first", key: (row) => row.id, empty: "No task since this broker started.",
    columns: [
      { title: "Task", isHead: true, kind: "number", text: (row) => count(row.id) },
      { title: "What", text: (row) => `${row.kind}${row.to ? ` to ${row.to}` : ""}` },
      { title: "Destination", text: (row) => row.destination },
      { title: "By", text: (row) => row.by },
      { title: "State", text: (row) => row.state },
      { title: "Took", kind: "number wide", text: (row) => duration(row.seconds) },
      { title: "Result", kind: "reason", text: (row) => taskSentence(row).split(" – ").slice(1).join(" – ") },
      { title: "Do", make: (row, current) => button("Stop", () =>
        attempt(() => ask(`/tasks/${current().id}`, { method: "DELETE" })), { "aria-label": `Stop task ${row.id}` }),
      renew: (node, row) => {
        node.hidden = row.state !== "running";
      } },
    ],
  });
  place.content.append(list.element);
  place.every(POLL_SECONDS, async () => list.update((await ask("/tasks", { signal: place.signal })).items));
}

// ---- users

export function showUsers(place) {
  const notes = el("ul");
  const users = table({
    caption: "Users", key: (row) => row.name, empty: "The users file has no users.",
    columns: [
      { title: "Name", isHead: true, text: (row) => row.name },
      { title: "Groups", text: (row) => row.groups.join(", ") },
      { title: "Password", text: (row) => (row.has_password ? "yes" : "no") },
      { title: "Certificate", kind: "mono wide", text: (row) => row.certificate ?? "" },
    ],
  });
  const rights = table({
    caption: "Rights", key: (row) => `${row.kind} ${row.pattern} ${row.read} ${row.write} ${row.admin}`,
    empty: "No rights are configured: all users who can connect have all rights.",
    columns: [
      { title: "Destinations", isHead: true, kind: "mono", text: (row) => `${row.kind} ${row.pattern}` },
      ...[["Read", "read"], ["Write", "write"], ["Admin", "admin"], ["Network", "network"]].map(([title, right]) =>
        ({ title, text: (row) => (row[right].length > 0 ? row[right].join(", ") : "–") })),
    ],
  });
  place.content.append(el("p", {}, "This page is read-only. To change users, use ", el("code", {}, "tandemmq user"),
    "; to change rights, edit the settings. docs/console.md describes the roles."),
  notes, users.element, rights.element);
  attempt(async () => {
    const answer = await ask("/users", { signal: place.signal });
    const said = [
      answer.problem && `The users file cannot be read: ${answer.problem}`,
      answer.has_ldap && "Users that are not in the file are looked up in LDAP.",
      `Clients without a login: ${{ true: "allowed from all addresses", false: "refused" }[answer.allow_anonymous]
        ?? "allowed from this machine only"}.`,
    ];
    notes.replaceChildren(...said.filter(Boolean).map((text) => el("li", {}, text)));
    users.update(answer.users);
    rights.update(answer.authorization);
  });
}
