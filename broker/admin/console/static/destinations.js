// Queues, topics with their durable subscriptions, and dead-letter queues: live counts.

import { ask, may, pathOf } from "./api.js";
import { button, el, setText } from "./dom.js";
import { count, plural, rate } from "./format.js";
import { attempt, growth, note, pager, question, say, sparkline, table } from "./parts.js";

const POLL_SECONDS = 2;
const ROWS = 100;

/** Return the pattern for a text. A text without wildcards matches all names that contain it. */
export function patternOf(text) {
  const said = text.trim();
  return said === "" || /[*?[]/.test(said) ? said : `*${said}*`;
}

export function filterField(label, go, example = "all, or ORDERS.*") {
  let waiting = null;
  const input = el("input", { type: "search", id: `filter-${label.replaceAll(/\W/g, "-")}`, maxlength: 500,
    spellcheck: "false", autocapitalize: "off", placeholder: example });
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(go, 250);
  };
  input.addEventListener("input", soon);
  return { element: el("p", { class: "field" }, el("label", { for: input.id }, label), input),
    get pattern() { return patternOf(input.value); } };
}

/** Describe the special states of a queue. */
export function stateOf(row) {
  return [
    row.consumers_paused && "consumers paused",
    row.producers_paused && "producers paused",
    row.kind?.startsWith("temp-") && "temporary",
    row.is_dead_letter_queue && "dead letters",
  ].filter(Boolean).join(", ");
}

function nameLink(row) {
  if (row.kind !== "queue") return el("span", { class: "name" }, row.name);
  return el("a", { class: "name", href: `#/queue/${encodeURIComponent(row.name)}` }, row.name);
}

const NAME = { title: "Name", isHead: true, make: nameLink };
const MESSAGES = { title: "Messages", kind: "number", text: (row) => count(row.messages) };
const LINE = {
  title: "Last minutes",
  kind: "wide drawn",
  make: () => {
    const line = sparkline();
    line.element.renew = line.update;
    return line.element;
  },
  renew: (node, row) => node.renew(note(`messages ${row.kind} ${row.name}`, row.messages), `messages of ${row.name}`),
};
const speed = (title, figure) => ({ title, kind: "number",
  text: (row) => rate(growth(`${figure} ${row.kind} ${row.name}`, row[figure])) });

async function create(kind, again) {
  const said = await question({
    title: `Create a ${kind}`, text: "It exists until it is deleted, or unused for the time that its policy sets.",
    action: "Create", isDanger: false,
    fields: [{ name: "name", label: "Name", required: true, maxlength: 512 }],
  });
  if (said === null) return;
  await attempt(async () => {
    await ask("/destinations", { method: "POST", body: { kind, name: said.name } });
    say(`${kind} ${said.name} is created.`);
    again();
  });
}

export function showQueues(place) {
  const renew = () => again();
  const filter = filterField("Names", () => {
    pages.begin();
    renew();
  });
  const pages = pager(renew);
  const list = table({
    caption: "Queues", hidesCaption: true, key: (row) => `${row.kind} ${row.name}`, empty: "No matching queue.",
    columns: [
      NAME, MESSAGES, LINE,
      { title: "In flight", kind: "number wide", text: (row) => count(row.unacknowledged) },
      { title: "Consumers", kind: "number", text: (row) => count(row.consumers) },
      { title: "Producers", kind: "number wide", text: (row) => count(row.producers) },
      { ...speed("In", "enqueued") }, { ...speed("Out", "dequeued") },
      { title: "State", kind: "wide", text: stateOf },
    ],
  });
  place.content.append(
    el("div", { class: "tools" }, filter.element,
      may("operator") && button("Create a queue…", () => create("queue", renew))),
    list.element, pages.element);
  const again = place.every(POLL_SECONDS, async () => {
    const query = { limit: ROWS, after: pages.after, filter: filter.pattern };
    const page = await ask("/destinations/queue", { query, signal: place.signal });
    list.update(page.items);
    pages.update(page, "queue");
  });
}

export function showDeadLetters(place) {
  const pages = pager(() => again());
  const total = el("p", { class: "lead" }, "…");
  const list = table({
    caption: "Dead-letter queues", hidesCaption: true, key: (row) => row.name, empty: "There is no dead-letter queue.",
    columns: [
      NAME, MESSAGES, LINE,
      { title: "New", kind: "number", text: (row) => rate(growth(`enqueued queue ${row.name}`, row.enqueued)) },
      { title: "Consumers", kind: "number wide", text: (row) => count(row.consumers) },
      { title: "State", kind: "wide", text: (row) => stateOf({ ...row, is_dead_letter_queue: false }) },
    ],
  });
  place.content.append(total, list.element, pages.element);
  const again = place.every(POLL_SECONDS, async () => {
    const query = { limit: ROWS, after: pages.after, dead_letters: true };
    const page = await ask("/destinations/queue", { query, signal: place.signal });
    const rows = page.items.toSorted((one, other) => other.messages - one.messages || (one.name < other.name ? -1 : 1));
    const letters = rows.reduce((sum, row) => sum + row.messages, 0);
    setText(total, page.total === 0 ? "No dead letters." : `${plural(letters, "dead letter")} in `
      + `${plural(rows.length, "queue")}${page.following === null ? "" : " of this page"}. Open a queue to see the cause and `
      + "origin of each one, and to retry, move or delete them.");
    list.update(rows);
    pages.update(page, "queue");
  });
}

async function remove(kind, row, again) {
  const said = await question({
    title: `Delete the ${kind} ${row.name}?`,
    text: `${plural(row.consumers, "consumer")} listen to it, and ${plural(row.durable_subscriptions ?? 0,
      "durable subscription")} keep messages of it.`,
    action: "Delete",
  });
  if (said === null) return;
  await attempt(async () => {
    await ask(pathOf(kind, row.name), { method: "DELETE" });
    say(`${kind} ${row.name} is deleted.`);
    again();
  });
}

export function showTopics(place) {
  const renew = () => again();
  const pages = pager(renew);
  const filter = filterField("Names", () => {
    pages.begin();
    renew();
  });
  const topics = table({
    caption: "Topics", hidesCaption: true, key: (row) => `${row.kind} ${row.name}`, empty: "No matching topic.",
    columns: [
      { title: "Name", isHead: true, text: (row) => row.name },
      { title: "Consumers", kind: "number", text: (row) => count(row.consumers) },
      { title: "Durable", kind: "number", text: (row) => count(row.durable_subscriptions) },
      speed("In", "enqueued"),
      { title: "Sent", kind: "number wide", text: (row) => count(row.enqueued) },
      { title: "Delivered", kind: "number wide", text: (row) => count(row.dispatched) },
      { title: "Dropped", kind: "number wide", text: (row) => count(row.dropped) },
      ...(may("operator") ? [{ title: "Do", make: (row, current) => row.kind === "topic"
        ? button("Delete…", () => remove("topic", current(), renew), { "aria-label": `Delete ${row.name}` })
        : el("span") }] : []),
    ],
  });
  const durablePages = pager(() => againDurable());
  const durables = table({
    caption: "Durable subscriptions", key: (row) => `${row.client_id}:${row.name}:${row.topic}`,
    columns: [
      { title: "Client", isHead: true, text: (row) => row.client_id },
      { title: "Name", text: (row) => row.name },
      { title: "Topic", text: (row) => row.topic },
      { title: "Pending", kind: "number", text: (row) => count(row.messages) },
      { title: "In flight", kind: "number wide", text: (row) => count(row.unacknowledged) },
      { title: "Connected", text: (row) => (row.consumers > 0 ? "yes" : "no") },
      { title: "Selector", kind: "wide mono", text: (row) => row.selector ?? "" },
    ],
  });
  place.content.append(
    el("div", { class: "tools" }, filter.element,
      may("operator") && button("Create a topic…", () => create("topic", renew))),
    topics.element, pages.element, durables.element, durablePages.element);
  const again = place.every(POLL_SECONDS, async () => {
    const query = { limit: ROWS, after: pages.after, filter: filter.pattern };
    const page = await ask("/destinations/topic", { query, signal: place.signal });
    topics.update(page.items);
    pages.update(page, "topic");
  });
  const againDurable = place.every(POLL_SECONDS, async () => {
    const page = await ask("/subscriptions", { query: { limit: ROWS, after: durablePages.after }, signal: place.signal });
    durables.update(page.items);
    durablePages.update(page, "subscription");
  });
}
