// One queue with its messages, and one message: browse, move, copy, delete, and retry dead letters.

import { ask, may, pathOf } from "./api.js";
import { stateOf } from "./destinations.js";
import { button, el, setText } from "./dom.js";
import { bytes, count, cut, plural, rate, time } from "./format.js";
import { attempt, facts, follow, growth, note, pager, question, say, sparkline, table } from "./parts.js";

const POLL_SECONDS = 2;
const ROWS = 50;
const PREVIEW_CHARACTERS = 80;

export function showQueue(place, [name], title) {
  setText(title, name);
  title.classList.add("name");
  const path = pathOf("queue", name);
  const told = facts(`Figures of ${name}`);
  const line = sparkline(300, 40);
  const tasks = el("div", { class: "tasks" });
  const actions = el("div", { class: "tools" });
  let queue = null;
  const figures = place.every(POLL_SECONDS, async () => {
    queue = await ask(path, { signal: place.signal });
    line.update(note(`messages queue ${name}`, queue.messages), `messages of ${name}`);
    told.update([
      ["Messages", count(queue.messages)],
      ["In flight", count(queue.unacknowledged)],
      ["Consumers", count(queue.consumers)],
      ["Producers", count(queue.producers)],
      ["In", rate(growth(`enqueued queue ${name}`, queue.enqueued))],
      ["Out", rate(growth(`dequeued queue ${name}`, queue.dequeued))],
      ["State", stateOf(queue) || "normal"],
    ]);
    drawActions();
  });
  const line_ = el("div", { class: "wideline" }, line.element);
  place.content.append(told.element, line_, actions, tasks);

  // ---- the queue

  const set = (word, body) => attempt(async () => {
    queue = await ask(`${path}/${word}`, { method: "POST", body });
    say(`${name}: ${stateOf(queue) || "resumed"}.`);
    figures();
  });
  const consumers = button("", () => set(queue.consumers_paused ? "resume" : "pause", { consumers: true }));
  const producers = button("", () => set(queue.producers_paused ? "resume" : "pause",
    { consumers: false, producers: true }));
  const purge = button("Purge…", async () => {
    const said = await question({
      title: `Purge ${name}?`, text: `All ${plural(queue.messages, "message")} in it are deleted for good.`,
      action: `Delete ${plural(queue.messages, "message")}`,
    });
    if (said !== null) await begin("/purge", {});
  });
  const remove = button("Delete the queue…", async () => {
    const said = await question({
      title: `Delete the queue ${name}?`,
      text: `${plural(queue.messages, "message")} in it are deleted for good; ${plural(queue.consumers, "consumer")} `
        + "listen to it.",
      action: `Delete it with ${plural(queue.messages, "message")}`,
    });
    if (said === null) return;
    await attempt(async () => {
      await ask(path, { method: "DELETE" });
      say(`The queue ${name} is deleted.`);
      location.hash = "#/queues";
    });
  });
  function drawActions() {
    setText(consumers, queue.consumers_paused ? "Resume consumers" : "Pause consumers");
    setText(producers, queue.producers_paused ? "Resume producers" : "Pause producers");
    for (const each of retries) each.hidden = !queue.is_dead_letter_queue;
  }

  /** Start a task, wait for its end, and update the page. */
  async function begin(word, body) {
    await attempt(async () => {
      const task = await ask(path + word, { method: "POST", body: { ...body, wait: 0.2 } });
      await follow(task, tasks, place.signal);
    });
    figures();
    browse();
  }

  // ---- its messages

  const retries = [];
  if (!may("operator")) {
    place.content.append(el("p", {}, "Messages are shown to operators only."));
    return;
  }
  actions.append(consumers, producers, purge, remove);

  const chosen = new Set();
  const selector = el("input", { id: "selector", maxlength: 10_000, spellcheck: "false", class: "mono",
    placeholder: "all, or region = 'EU' AND JMSPriority > 4" });
  let asked = "";
  const pages = pager(() => browse());
  const all = el("input", { type: "checkbox", "aria-label": "Choose all of this page",
    on: { change: () => {
      for (const box of list.element.querySelectorAll("tbody input")) {
        box.checked = all.checked;
        box.dispatchEvent(new Event("change"));
      }
    } } });
  const list = table({
    caption: `Messages of ${name}`, key: (row) => `${row.position} ${row.id}`, empty: "No message.",
    columns: [
      { title: () => all, name: "choose", make: (row) => el("input", { type: "checkbox",
        "aria-label": `Choose message ${row.position}`,
        on: { change: (event) => {
          if (event.target.checked) chosen.add(row.id);
          else chosen.delete(row.id);
          drawChoice();
        } } }) },
      { title: "Place", kind: "number", text: (row) => count(row.position) },
      { title: "Message", isHead: true, make: (row) => el("a", { class: "mono",
        href: `#/message/${encodeURIComponent(name)}/${row.position - 1}/${encodeURIComponent(row.id)}` },
      cut(row.id, 60)) },
      { title: "Sent", kind: "wide", text: (row) => time(row.timestamp) },
      { title: "Origin", kind: "letter", text: (row) => row.original_destination ?? "" },
      { title: "Cause", kind: "letter", text: (row) => cut(String(row.cause ?? ""), 160) },
      { title: "Priority", kind: "number wide", text: (row) => count(row.priority) },
      { title: "Retries", kind: "number wide", text: (row) => count(row.redelivery_counter) },
      { title: "Size", kind: "number wide", text: (row) => bytes(row.size) },
      { title: "Begins", kind: "mono", text: (row) => cut(row.preview ?? `(${row.body_kind})`, PREVIEW_CHARACTERS) },
    ],
  });

  /** Return the messages to which a button applies, and their number. */
  async function choice() {
    if (which.value === "chosen") {
      return { body: { ids: [...chosen] }, number: chosen.size, words: plural(chosen.size, "chosen message") };
    }
    const body = asked === "" ? { all: true } : { selector: asked };
    const task = await ask(`${path}/messages/retry`, { method: "POST", body: { ...body, dry_run: true, wait: 15 } });
    if (task.state !== "done") throw new Error(`the messages cannot be counted: ${task.error ?? task.state}`);
    const number = Object.values(task.counts).reduce((sum, each) => sum + each, 0);
    const more = task.notes.length > 0 ? " or more" : "";
    const words = asked === "" ? `all ${plural(number, "message")}${more}` : `${plural(number, "message")}${more} that `
      + "match the selector";
    return { body, number, words, origins: task.counts };
  }

  async function act(work) {
    await attempt(async () => {
      const found = await choice();
      if (found.number === 0) {
        say("No message matches.");
        return;
      }
      await work(found);
    });
  }

  const carry = (word, verb) => act(async (found) => {
    const said = await question({
      title: `${verb} messages of ${name}`, text: `${verb} ${found.words}.`, isDanger: word === "move",
      action: `${verb} ${plural(found.number, "message")}`,
      fields: [{ name: "to", label: "To", required: true, maxlength: 512 },
        { name: "to_kind", label: "which is a", options: [["queue", "queue"], ["topic", "topic"]], value: "queue" }],
    });
    if (said !== null) await begin(`/messages/${word}`, { ...found.body, ...said });
  });
  const drop = () => act(async (found) => {
    const said = await question({
      title: `Delete messages of ${name}?`, text: `${found.words} are deleted for good.`,
      action: `Delete ${plural(found.number, "message")}`,
    });
    if (said !== null) await begin("/messages/delete", found.body);
  });
  const retry = () => act(async (found) => {
    const dry = await ask(`${path}/messages/retry`, { method: "POST", body: { ...found.body, dry_run: true, wait: 15 } });
    const origins = Object.entries(dry.counts);
    const said = await question({
      title: "Retry dead letters", text: `Dry run: ${found.words} would be sent back to their original destinations.`,
      more: el("ul", {}, origins.map(([origin, number]) => el("li", {}, origin === "of_unknown_origin"
        ? `${plural(number, "message")} without a known original destination would stay` : `${origin}: ${plural(number, "message")}`))),
      action: `Retry ${plural(found.number, "message")}`,
      fields: [
        { name: "canary", label: "First one, then ten, then all; stop if one becomes a dead letter again", type: "checkbox", value: true },
        { name: "canary_wait", label: "Time in seconds until the messages of a step must be consumed", type: "number", value: 30, min: 1,
          max: 3600, step: "any" },
        { name: "rate", label: "Messages a second at most (empty: no limit)", type: "number", min: 0.1, max: 1_000_000,
          step: "any" },
      ],
    });
    if (said === null) return;
    const body = { ...found.body, canary: said.canary };
    if (said.canary) body.canary_wait = Number(said.canary_wait) || 30;
    if (said.rate !== "") body.rate = Number(said.rate);
    await begin("/messages/retry", body);
  });

  const which = el("select", { id: "which", on: { change: () => drawChoice() } });
  const buttons = [["Move…", () => carry("move", "Move")], ["Copy…", () => carry("copy", "Copy")], ["Delete…", drop]]
    .map(([text, call]) => button(text, call));
  const again = button("Retry…", retry, { class: "main", hidden: true });
  retries.push(again);
  const chosenOption = el("option", { value: "chosen" });
  const allOption = el("option", { value: "all" });
  which.append(chosenOption, allOption);
  function drawChoice() {
    setText(chosenOption, `the ${count(chosen.size)} chosen`);
    setText(allOption, asked === "" ? "all in the queue" : "all that match the selector");
    const isNone = which.value === "chosen" && chosen.size === 0;
    for (const each of [...buttons, again]) each.disabled = isNone;
  }
  drawChoice();

  async function browse() {
    await attempt(async () => {
      chosen.clear();
      all.checked = false;
      const query = { limit: ROWS, after: pages.after || 0, selector: asked };
      const page = await ask(`${path}/messages`, { query, signal: place.signal });
      list.element.classList.toggle("letters", page.items.some((row) => row.cause !== null || row.original_destination));
      list.update([]);
      list.update(page.items);
      pages.update({ following: page.following });
      drawChoice();
    });
  }
  const form = el("form", { class: "tools", on: { submit: (event) => {
    event.preventDefault();
    asked = selector.value.trim();
    pages.begin();
    browse();
  } } },
  el("p", { class: "field grows" }, el("label", { for: "selector" }, "Selector"), selector),
  el("button", {}, "Browse"));
  place.content.append(el("h2", {}, "Messages"), form,
    el("div", { class: "tools" }, el("p", { class: "field" }, el("label", { for: "which" }, "Apply to"), which),
      again, buttons),
    list.element, pages.element);
  browse();
}

export function showMessage(place, [queue, after, id], title) {
  setText(title, id);
  title.classList.add("name");
  const path = pathOf("queue", queue);
  const home = `#/queue/${encodeURIComponent(queue)}`;
  place.content.append(el("p", {}, "In ", el("a", { href: home }, queue)));
  attempt(async () => {
    const message = await ask(`${path}/messages/${encodeURIComponent(id)}`, { query: { after }, signal: place.signal });
    const head = facts("Headers", "roomy");
    head.update([
      ["Destination", message.destination],
      ["Original destination", message.original_destination ?? undefined],
      ["Cause", message.cause === null ? undefined : String(message.cause)],
      ["Sent", time(message.timestamp, true)],
      ["Expires", message.expiration === null ? "never" : time(message.expiration, true)],
      ["Priority", message.priority],
      ["Persistent", message.persistent ? "yes" : "no"],
      ["Failed deliveries", message.redelivery_counter],
      ["Correlation id", message.correlation_id ?? undefined],
      ["Reply to", message.reply_to ?? undefined],
      ["Type", message.type ?? undefined],
      ["Group", message.group_id === null ? undefined : `${message.group_id} (${message.group_sequence})`],
      ["User", message.user_id ?? undefined],
      ["Size", bytes(message.size)],
      ["Body", message.body_kind],
    ]);
    const properties = table({
      caption: "Properties", key: ([name]) => name,
      columns: [{ title: "Name", isHead: true, kind: "mono", text: ([name]) => name },
        { title: "Value", kind: "mono", text: ([, value]) => (value === null ? "null" : String(value)) }],
    });
    properties.update(Object.entries(message.properties));
    const leftOut = message.properties_left_out;
    const more = leftOut === null ? "The properties are too long to be shown." : leftOut > 0 ? `${plural(leftOut, "property", "properties")} more.` : "";
    const body = message.body ?? message.body_base64 ?? "";
    const kind = message.body === null ? " (base64)" : "";
    const note_ = message.problem ?? (message.is_cut ? "Only the beginning of the body is shown." : "");
    place.content.append(head.element, properties.element, more && el("p", { class: "problem" }, more), el("h2", {}, `Body${kind}`),
      note_ && el("p", { class: "problem" }, note_),
      el("pre", { tabindex: "0", "aria-label": "Body" }, body === "" ? "(empty)" : body));
  });
}
