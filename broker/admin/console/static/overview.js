// Overview of this broker: role, rates, delays, predicted take-over, members of a set, files of the store.

import { ask, may } from "./api.js";
import { button, el, setText } from "./dom.js";
import { bytes, count, duration, plural, quantile, rate, time } from "./format.js";
import { attempt, facts, growth, note, question, say, sparkline, table } from "./parts.js";

const POLL_SECONDS = 3;
const FILES_SECONDS = 15;
const FILES_MAX = 200;
const HOLDERS_MAX = 3;

function section(title, ...content) {
  return el("section", { "aria-label": title }, el("h2", {}, title), content);
}

/** Make tiles, each with a figure and a line chart of the last minutes. */
function tiles() {
  const list = el("div", { class: "tiles" });
  const known = new Map();
  return {
    element: list,
    update(name, value, shown, what) {
      if (value === null || value === undefined || !Number.isFinite(value)) return;
      let tile = known.get(name);
      if (!tile) {
        tile = { value: el("strong"), line: sparkline() };
        known.set(name, tile);
        list.append(el("div", { class: "tile" }, el("span", {}, name), tile.value, tile.line.element));
      }
      setText(tile.value, shown);
      tile.line.update(note(`tile ${name}`, value), what ?? name);
    },
  };
}

function sentences(title, kind) {
  const list = el("ul");
  const made = el("section", { class: kind, hidden: true, "aria-label": title }, el("h2", {}, title), list);
  return {
    element: made,
    update(found) {
      made.hidden = found.length === 0;
      if (list.children.length === found.length) found.forEach((text, number) => setText(list.children[number], text));
      else list.replaceChildren(...found.map((text) => el("li", {}, text)));
    },
  };
}

function takeoverPairs(prediction) {
  if (!prediction) return [["Take-over", undefined]];
  return [
    ["Predicted duration", `${duration(prediction.total_seconds)} of ${duration(prediction.budget_seconds)}`
      + (prediction.is_within_budget ? "" : " – more than the budget")],
    ["Lock", duration(prediction.lock_seconds)],
    ["Replay", `${duration(prediction.replay_seconds)} (${plural(prediction.records, "record")})`],
    ["Load", `${duration(prediction.load_seconds)} (${plural(prediction.owners, "queue or subscription",
      "queues and subscriptions")})`],
  ];
}

/** Return a function that describes a histogram: median and 99th percentile since its last call. */
function delays() {
  const former = new Map();
  return function of(name, histogram) {
    if (!histogram) return undefined;
    const known = former.get(name);
    former.set(name, histogram);
    const half = quantile(histogram, known, 0.5);
    const most = quantile(histogram, known, 0.99);
    if (half === null) return "no recent samples";
    const largest = Number(histogram.buckets.at(-2)?.[0]);
    const words = (bound) => (bound === Infinity ? `> ${duration(largest)}` : `≤ ${duration(bound)}`);
    return `50 %: ${words(half)}, 99 %: ${words(most)}`;
  };
}

const DELAYS = [
  ["Send to receipt", "send_to_receipt_seconds"],
  ["Store to delivery", "store_to_delivery_seconds"],
  ["Sync of the disk", "sync_seconds"],
  ["Checkpoint", "checkpoint_seconds"],
];

export function showOverview(place) {
  const problems = sentences("Problems", "bad");
  const warnings = sentences("Warnings", "warn");
  const what = facts("This broker");
  const takeover = facts("Take-over");
  const latency = facts("Delays");
  const sums = facts("Totals");
  const drawn = tiles();
  const delay = delays();
  const masterLink = el("span");
  const restTitle = section("Delays", latency.element);
  const sumsTitle = section("Totals", sums.element);
  const drawnTitle = section("Rates", drawn.element);
  const members = memberTable();
  const files = filesPart(place);
  const tools = el("div", { class: "tools" });
  const prediction = section("If this broker fails now", takeover.element);
  place.content.append(problems.element, warnings.element,
    el("div", { class: "columns" }, section("This broker", what.element), prediction, restTitle),
    drawnTitle, sumsTitle, members.element, files, tools);
  adminTools(place, tools);

  place.every(POLL_SECONDS, async () => {
    const broker = await ask("/broker", { signal: place.signal });
    const isMaster = broker.role === "master";
    problems.update(broker.problems ?? []);
    warnings.update(broker.warnings ?? []);
    if (broker.holder && masterLink.textContent !== `${broker.holder.name}${broker.holder.admin ?? ""}`) {
      masterLink.replaceChildren(place.holderLink(broker.holder));
    }
    what.update([
      ["Role", broker.role === broker.phase ? broker.role : `${broker.role} (${broker.phase})`],
      ["Epoch", count(broker.epoch)],
      ["Master", broker.holder ? masterLink : isMaster ? "this one" : "unknown"],
      ["Why", broker.reason],
      ["Runs since", `${duration(broker.uptime_seconds)}, pid ${broker.pid}`],
      ["Version", `${broker.version} (${broker.code})`],
      ["Lock", `${broker.lock.type}: ${broker.lock.where}`],
      ["Proof of the lock", broker.lock.proof_age_seconds === undefined ? undefined
        : `${duration(broker.lock.proof_age_seconds)} old`],
      ["Store", broker.store],
      ["Connectors", broker.connectors.join(", ")],
      ["Last take-over", broker.last_takeover_seconds === null ? undefined : duration(broker.last_takeover_seconds)],
    ]);
    const standby = broker.standby;
    setText(prediction.firstChild, isMaster ? "If this broker fails now" : "If the master fails now");
    takeover.update([
      ...takeoverPairs(standby?.takeover ?? broker.takeover),
      ["Has caught up", standby ? (standby.has_caught_up ? "yes" : "no") : undefined],
      ["Behind the master", standby?.lag ? `${bytes(standby.lag.bytes)}, ${plural(standby.lag.records, "record")}, `
        + `${duration(standby.lag.seconds)}` : undefined],
      ["Messages", standby ? count(standby.messages) : undefined],
    ]);
    latency.update([
      ...DELAYS.map(([title, key]) => [title, delay(key, broker.measured?.[key])]),
      ["Event loop delay", delay("loop", broker.loop_lag_seconds)],
      ["Longest pause", duration(broker.loop_lag_seconds?.max)],
    ]);
    drawnTitle.hidden = sumsTitle.hidden = !isMaster;
    members.update(broker, place);
    if (isMaster) await drawFigures(drawn, sums, broker, place);
  });
}

async function drawFigures(drawn, sums, broker, place) {
  const { counts, queues, consumers } = await ask("/figures", { signal: place.signal });
  const slow = await ask("/consumers", { query: { slow: true, limit: 1 }, signal: place.signal });
  const own = broker.counts;
  for (const [name, key] of [["Messages in", "enqueued_total"], ["Messages out", "dequeued_total"]]) {
    const speed = growth(`broker ${key}`, counts[key]);
    drawn.update(name, speed, rate(speed), `${name} a second`);
  }
  drawn.update("Messages waiting", counts.messages, count(counts.messages));
  const written = growth("broker journal", own.journal_bytes_total);
  drawn.update("Journal written", written, `${bytes(written)}/s`, "bytes written a second");
  const syncs = growth("broker syncs", own.journal_syncs_total);
  drawn.update("Syncs", syncs, rate(syncs), "syncs of the disk a second");
  drawn.update("Connections", own.connections, count(own.connections));
  sums.update([
    ["Queues", count(queues)],
    ["Consumers of queues", count(consumers)],
    ["In flight", count(counts.unacknowledged)],
    ["Memory", `${bytes(counts.memory_used_bytes)} of ${bytes(counts.memory_limit_bytes)}`],
    ["Dead letters so far", count(counts.dead_letters_total)],
    ["Expired so far", count(counts.expired_total)],
    ["Slow consumers", count(slow.total)],
    ["Blocked producers", count(counts.blocked_producers)],
    ["Scheduled", count(counts.scheduled)],
    ["Checkpoints", count(own.checkpoints_total)],
    ["Compactions", count(own.compactions_total)],
    ["Journal files reclaimed", count(own.journal_files_reclaimed_total)],
  ]);
}

// ---- the set

function memberTable() {
  const list = table({
    caption: "Members of the set", key: (row) => row.store,
    columns: [
      { title: "Node", isHead: true, text: (row) => row.node },
      { title: "Role", text: (row) => row.said?.role ?? "no contact yet" },
      { title: "Votes", text: (row) => (row.is_voter ? "yes" : "no") },
      { title: "Linked", text: (row) => (row.is_linked ? "yes" : "no") },
      { title: "Epoch", kind: "number", text: (row) => count(row.said?.epoch) },
      { title: "Behind", kind: "number", text: (row) => bytes(row.lag_bytes) },
      { title: "Problem", kind: "wide", text: (row) => row.said?.problem ?? "" },
      { title: "Console", make: (row) => (row.admin
        ? el("a", { href: row.admin, rel: "noreferrer" }, row.admin) : el("span", {}, "–")) },
    ],
  });
  const element = el("div", { hidden: true }, list.element);
  return {
    element,
    async update(broker, place) {
      const part = broker.replication;
      element.hidden = !part;
      if (!part) return;
      const answer = await fetch("/replication", { signal: place.signal });
      if (!answer.ok) return;
      const overview = await answer.json();
      list.update(overview.members.map((row) => ({ ...row, lag_bytes: part.followers?.[row.store]?.lag_bytes })));
    },
  };
}

// ---- the store

function pinsOf(file) {
  const holders = file.holders.slice(0, HOLDERS_MAX).map((each) =>
    `${each.subscription_name ? `${each.client_id}:${each.subscription_name} of ` : ""}${each.destination} `
    + `(${plural(each.count, "message")}, ${bytes(each.bytes)})`);
  const more = file.holders_total - holders.length;
  if (more > 0) holders.push(`${count(more)} more`);
  if (file.transactions.length > 0) holders.push(plural(file.transactions.length, "open transaction"));
  if (file.subscriptions.length > 0) holders.push(plural(file.subscriptions.length, "record") + " of subscriptions");
  if (file.pinned_by.length > 0) holders.push(`needed by records in db-${file.pinned_by.slice(0, 5).join(", db-")}`);
  return holders.join("; ") || (file.state === "tail" ? "it is being written" : "nothing");
}

function filesPart(place) {
  const told = el("p", { class: "lead" });
  const list = table({
    caption: "Journal files, and why they are kept", key: (row) => `${row.store} ${row.name}`,
    columns: [
      { title: "File", isHead: true, kind: "mono", text: (row) => (row.store ? `${row.store}/` : "") + row.name },
      { title: "Size", kind: "number", text: (row) => bytes(row.bytes) },
      { title: "Live", kind: "number wide", text: (row) => bytes(row.live_bytes) },
      { title: "Messages", kind: "number wide", text: (row) => count(row.live_messages) },
      { title: "Epoch", kind: "number wide", text: (row) => count(row.epoch) },
      { title: "State", kind: "wide", text: (row) => row.state },
      { title: "Kept by", kind: "reason", text: pinsOf },
      { title: "To remove it", kind: "wide reason", text: (row) => row.action },
    ],
  });
  const made = section("Store", told, list.element);
  made.hidden = true;
  place.every(FILES_SECONDS, async () => {
    if (place.broker()?.role !== "master") {
      made.hidden = true;
      return;
    }
    const found = await whys(place.signal);
    made.hidden = false;
    const sum = (figure) => found.reduce((total, [, why]) => total + why[figure], 0);
    const all = found.flatMap(([store, why]) => why.files.map((file) => ({ ...file, store })));
    const shown = all.slice(0, FILES_MAX);
    setText(told, `${plural(all.length, "journal file")} with ${bytes(sum("journal_bytes"))}, of which `
      + `${bytes(sum("live_bytes"))} are live (${plural(sum("live_messages"), "message")}). `
      + (found.every(([, why]) => why.is_bound_held) ? "Within the bound of compaction, " : "Above the bound of compaction, ")
      + `${bytes(sum("bound_bytes"))}.${all.length > shown.length ? ` The first ${count(FILES_MAX)} are shown.` : ""}`);
    list.update(shown);
  });
  return made;
}

/** Return a pair for each store: its name ("" if there is only one store), and the answer about its files. */
async function whys(signal) {
  try {
    return [["", await ask("/store/why", { signal })]];
  } catch (error) {
    if (!error.answer?.stores) throw error;
    const found = [];
    for (const store of error.answer.stores) found.push([store, await ask("/store/why", { query: { store }, signal })]);
    return found;
  }
}

function adminTools(place, tools) {
  if (!may("admin") || place.broker()?.role !== "master") return;
  const order = (text, path, done, ask_) => button(text, async () => {
    if (ask_ && (await question(ask_)) === null) return;
    await attempt(async () => say(done(await ask(path, { method: "POST", body: {} }))));
  });
  tools.append(
    order("Make a checkpoint", "/store/checkpoint", () => "The checkpoint is made."),
    order("Compact the journal", "/store/compact", (report) => `Compacted: ${JSON.stringify(report)}`),
    order("Hand over…", "/handover", (answer) => `Handed over at ${time(answer.at?.wall_ms)}.`, {
      title: "Hand over to another broker?",
      text: "All clients are disconnected, and reconnect to the broker that takes the lock. No confirmed message is lost.",
      action: "Hand over",
    }));
}
