// Connections, consumers (slow ones with the reason), and producers (blocked ones with the reason).

import { ask, may } from "./api.js";
import { filterField } from "./destinations.js";
import { button, el } from "./dom.js";
import { bytes, count, plural, time } from "./format.js";
import { attempt, pager, question, say, table } from "./parts.js";

const POLL_SECONDS = 3;
const ROWS = 100;

/** Return a pattern that matches only this text. */
function exactly(text) {
  return text.replaceAll(/[[*?]/g, "[$&]");
}

async function close(row, again) {
  await attempt(async () => {
    const query = { filter: `${exactly(row.id)}/*`, limit: 1000 };
    const consumers = await ask("/consumers", { query });
    const open = consumers.items.reduce((sum, each) => sum + each.unacknowledged, 0);
    const said = await question({
      title: `Close the connection of ${row.client_id ?? row.peer}?`,
      text: `${plural(row.consumers, "consumer")} and ${plural(row.transactions, "open transaction")} end with it; `
        + `${plural(open, "message")} that it has not acknowledged will be delivered again. A client can reconnect `
        + "automatically.",
      action: "Close the connection",
    });
    if (said === null) return;
    await ask(`/connections/${encodeURIComponent(row.id)}`, { method: "DELETE" });
    say(`The connection ${row.id} is closed.`);
    again();
  });
}

export function showConnections(place) {
  const renew = () => again();
  const pages = pager(renew);
  const filter = filterField("Connection ids", () => {
    pages.begin();
    renew();
  }, "all, or ID:one-*");
  const list = table({
    caption: "Connections", hidesCaption: true, key: (row) => row.id, empty: "No connections.",
    columns: [
      { title: "Connection", isHead: true, kind: "mono", text: (row) => row.id },
      { title: "Client", text: (row) => row.client_id ?? "" },
      { title: "User", text: (row) => row.user },
      { title: "From", kind: "mono wide", text: (row) => row.peer },
      { title: "Connector", kind: "wide", text: (row) => row.connector ?? "" },
      { title: "Consumers", kind: "number wide", text: (row) => count(row.consumers) },
      { title: "Transactions", kind: "number wide", text: (row) => count(row.transactions) },
      { title: "Memory", kind: "number wide", text: (row) => bytes(row.held_bytes) },
      { title: "State", kind: "wide", text: (row) => (row.is_held_back ? "held back: holds too much memory" : "") },
      ...(may("admin") ? [{ title: "Do", make: (row, current) =>
        button("Close…", () => close(current(), renew), { "aria-label": `Close ${row.id}` }) }] : []),
    ],
  });
  place.content.append(el("div", { class: "tools" }, filter.element), list.element, pages.element);
  const again = place.every(POLL_SECONDS, async () => {
    const query = { limit: ROWS, after: pages.after, filter: filter.pattern };
    const page = await ask("/connections", { query, signal: place.signal });
    list.update(page.items);
    pages.update(page, "connection");
  });
}

function consumerTable(caption, empty, withReason) {
  return table({
    caption, empty, key: (row) => `${row.connection}/${row.id}`,
    columns: [
      { title: "Destination", isHead: true, text: (row) => row.destinations.join(", ") },
      ...(withReason ? [{ title: "Why it is slow", kind: "reason", text: (row) => row.slow ?? "" }] : []),
      { title: "User", text: (row) => row.user },
      { title: "Connection", kind: "mono wide", text: (row) => row.connection },
      { title: "Consumer", kind: "mono wide", text: (row) => row.id },
      { title: "Acknowledges", kind: "wide", text: (row) => row.ack },
      { title: "Prefetch", kind: "number", text: (row) => count(row.prefetch) },
      { title: "Open", kind: "number", text: (row) => count(row.unacknowledged) },
      { title: "Pending", kind: "number wide", text: (row) => count(row.pending) },
      { title: "Dropped", kind: "number wide", text: (row) => count(row.dropped) },
      { title: "Selector", kind: "mono wide", text: (row) => row.selector ?? "" },
    ],
  });
}

export function showConsumers(place) {
  const slow = consumerTable("Slow consumers", "No slow consumers.", true);
  const slowPages = pager(() => againSlow());
  const all = consumerTable("All consumers", "No consumers.", false);
  const pages = pager(() => again());
  place.content.append(slow.element, slowPages.element, all.element, pages.element);
  const againSlow = place.every(POLL_SECONDS, async () => {
    const query = { limit: ROWS, after: slowPages.after, slow: true };
    const page = await ask("/consumers", { query, signal: place.signal });
    slow.update(page.items);
    slowPages.update(page, "slow consumer");
  });
  const again = place.every(POLL_SECONDS, async () => {
    const page = await ask("/consumers", { query: { limit: ROWS, after: pages.after }, signal: place.signal });
    all.update(page.items);
    pages.update(page, "consumer");
  });
}

export function showProducers(place) {
  const blocked = table({
    caption: "Blocked producers", empty: "No blocked producers.",
    key: (row) => `${row.peer} ${row.destination}`,
    columns: [
      { title: "Producer", isHead: true, text: (row) => row.producer },
      { title: "Destination", text: (row) => row.destination },
      { title: "Why it waits", kind: "reason", text: (row) => `${row.reason} (${row.limit} of ${row.of})` },
      { title: "Since", text: (row) => time(row.since) },
      { title: "From", kind: "mono wide", text: (row) => row.peer },
      { title: "Sends", kind: "number wide", text: (row) => count(row.sends) },
      { title: "Bytes", kind: "number wide", text: (row) => bytes(row.bytes) },
      { title: "Still read", kind: "wide", text: (row) => (row.is_read ? "yes" : "no") },
    ],
  });
  const declared = table({
    caption: "Declared producers (OpenWire)", empty: "No declared producers. STOMP clients send without declaring a producer.",
    key: (row) => `${row.connection}/${row.id}`,
    columns: [
      { title: "Producer", isHead: true, kind: "mono", text: (row) => row.id },
      { title: "Destination", text: (row) => row.destination ?? "any" },
      { title: "User", text: (row) => row.user },
      { title: "Connection", kind: "mono wide", text: (row) => row.connection },
    ],
  });
  const pages = pager(() => again());
  place.content.append(blocked.element, declared.element, pages.element);
  const again = place.every(POLL_SECONDS, async () => {
    const page = await ask("/producers", { query: { limit: ROWS, after: pages.after }, signal: place.signal });
    blocked.update(page.blocked);
    declared.update(page.items);
    pages.update(page, "producer");
  });
}
