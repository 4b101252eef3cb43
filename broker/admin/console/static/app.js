// The frame of all pages: the login, the navigation, and the state of this broker.

import { ask, logIn, logOut, may, session, whoAmI } from "./api.js";
import { showConnections, showConsumers, showProducers } from "./clients.js";
import { showDeadLetters, showQueues, showTopics } from "./destinations.js";
import { button, el, setText } from "./dom.js";
import { showMessage, showQueue } from "./messages.js";
import { showOverview } from "./overview.js";
import { attempt, say } from "./parts.js";
import { showEvents, showTasks, showUsers } from "./records.js";

const LOOK_MS = 3000;

// Pages by the first word of the address after "#/". `of: "master"`: only a master has this page.
const PAGES = {
  overview: { title: "Overview", show: showOverview },
  queues: { title: "Queues", show: showQueues, of: "master" },
  topics: { title: "Topics", show: showTopics, of: "master" },
  "dead-letters": { title: "Dead letters", show: showDeadLetters, of: "master" },
  connections: { title: "Connections", show: showConnections, of: "master" },
  consumers: { title: "Consumers", show: showConsumers, of: "master" },
  producers: { title: "Producers", show: showProducers, of: "master" },
  events: { title: "Failover", show: showEvents },
  tasks: { title: "Tasks", show: showTasks, of: "master", role: "operator" },
  users: { title: "Users", show: showUsers, role: "admin" },
  queue: { title: "Queue", show: showQueue, of: "master", isOf: "queues" },
  message: { title: "Message", show: showMessage, of: "master", isOf: "queues", role: "operator" },
};

const main = document.getElementById("main");
const state = { broker: null, page: null, ending: null, isAnswered: true };

// ---- the state of this broker

function holderLink(holder) {
  return holder?.admin ? el("a", { href: holder.admin, rel: "noreferrer" }, `${holder.name} (${holder.admin})`)
    : el("span", {}, holder?.name ?? "unknown to this broker");
}

async function look() {
  try {
    const known = state.broker;
    state.broker = await ask("/broker");
    if (known?.role !== state.broker.role || known?.name !== state.broker.name) {
      frame();
      if (known) open();
    }
  } catch (error) {
    if (error.status !== 401) state.broker = state.broker && { ...state.broker, role: "silent" };
  }
  drawTop();
}

const name = el("strong");
const role = el("span", { class: "badge" });
const who = el("span", { class: "who" });
const enter = el("a", { href: "#/login", class: "button" }, "Log in");
const leave = button("Log out", async () => {
  await attempt(logOut);
  location.hash = "#/overview";
  begin();
});
document.getElementById("top").append(
  el("span", { class: "brand" }, "TandemMQ"), name, role, el("span", { class: "space" }), who, enter, leave);

function drawTop() {
  const broker = state.broker;
  setText(name, broker?.name ?? "");
  setText(role, broker ? (broker.role === "silent" ? "does not answer" : `${broker.role}, epoch ${broker.epoch}`) : "");
  role.className = `badge ${broker?.role ?? "hidden"}`;
  const isIn = session.csrf !== null;
  setText(who, session.role === "nobody" ? "" : `${session.name} (${session.role})`);
  enter.hidden = isIn || session.role === "nobody";
  leave.hidden = !isIn;
}

function frame() {
  const isMaster = state.broker?.role === "master";
  const shown = Object.entries(PAGES).filter(([, page]) =>
    !page.isOf && may(page.role ?? "viewer") && (page.of !== "master" || isMaster));
  const links = shown.map(([word, page]) => el("li", {}, el("a", { href: `#/${word}`, "data-page": word }, page.title)));
  const pages = document.getElementById("pages");
  pages.hidden = links.length === 0;
  pages.replaceChildren(el("ul", {}, links));
  mark();
}

function mark() {
  const shown = PAGES[state.page]?.isOf ?? state.page;
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.dataset.page === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// ---- pages

function words() {
  return location.hash.replace(/^#\/?/, "").split("/").map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
}

/** Return the context of a page: its element, the signal that ends it, and a function for updates. */
function placeOf(signal) {
  const content = el("div");
  return {
    content,
    signal,
    broker: () => state.broker,
    holderLink,
    /** Call `work` now and every `seconds`, while the page is open and visible. */
    every(seconds, work) {
      let isAtWork = false;
      const once = async () => {
        if (isAtWork || signal.aborted || document.hidden) return;
        isAtWork = true;
        try {
          await work();
          setText(problem, "");
        } catch (error) {
          if (error.name !== "AbortError" && !signal.aborted && error.status !== 401) tell(error);
        } finally {
          isAtWork = false;
          problem.hidden = problem.textContent === "";
        }
      };
      const problem = el("p", { class: "problem", hidden: true });
      content.append(problem);
      function tell(error) {
        setText(problem, error.message);
        if (error.answer?.holder) problem.append(" Master: ", holderLink(error.answer.holder));
      }
      const timer = setInterval(once, seconds * 1000);
      signal.addEventListener("abort", () => clearInterval(timer));
      once();
      return once;
    },
  };
}

function open() {
  state.ending?.abort();
  state.ending = new AbortController();
  const [word, ...more] = words();
  if (session.role === "nobody" || word === "login") return showLogin();
  state.page = Object.hasOwn(PAGES, word) ? word : "overview";
  const page = PAGES[state.page];
  const place = placeOf(state.ending.signal);
  const title = el("h1", { tabindex: "-1" }, page.title);
  main.replaceChildren(title, place.content);
  if (!may(page.role ?? "viewer")) {
    place.content.append(el("p", {}, `The role ${page.role} is required.`));
  } else if (page.of === "master" && state.broker?.role !== "master") {
    place.content.append(el("p", {}, `${state.broker?.name ?? "This broker"} is not master. Master: `,
      holderLink(state.broker?.holder)));
  } else {
    page.show(place, more, title);
  }
  document.title = `${title.textContent} – ${state.broker?.name ?? ""} – TandemMQ`;
  mark();
  return title.focus({ preventScroll: true });
}

function showLogin() {
  const refused = el("p", { role: "alert", class: "problem", id: "refused" });
  const field = (id, label, more) => [el("label", { for: id }, label),
    el("input", { id, maxlength: 1024, autocapitalize: "off", spellcheck: "false", "aria-describedby": "refused",
      ...more })];
  async function send(event, said) {
    event.preventDefault();
    setText(refused, "");
    try {
      await logIn(said());
    } catch (error) {
      setText(refused, error.message);
      return;
    }
    if (words()[0] === "login") history.replaceState(null, "", "#/overview");
    begin();
  }
  const value = (id) => document.getElementById(id).value;
  const form = el("form", { method: "post", class: "login",
    on: { submit: (event) => send(event, () => ({ login: value("login"), passcode: value("passcode") })) } },
  field("login", "User", { autocomplete: "username", required: true }),
  field("passcode", "Password", { type: "password", autocomplete: "current-password", required: true }),
  el("button", { class: "main" }, "Log in"));
  const byToken = el("form", { method: "post", class: "login",
    on: { submit: (event) => send(event, () => ({ token: value("token") })) } },
  el("p", {}, "The token is in the file NAME.admin-token in the broker's index directory."),
  field("token", "Admin token", { type: "password", autocomplete: "off", required: true }),
  el("button", {}, "Log in with the token"));
  const title = el("h1", { tabindex: "-1" }, "Log in");
  main.replaceChildren(el("div", { class: "narrow" }, title, refused, form,
    el("details", { open: session.role !== "nobody" }, el("summary", {}, "With the admin token of this broker"), byToken)));
  document.title = "Log in – TandemMQ";
  state.page = null;
  frame();
  document.getElementById("login").focus();
}

async function begin() {
  try {
    await whoAmI();
    state.broker = session.role === "nobody" ? null : await ask("/broker");
    state.isAnswered = true;
  } catch (error) {
    if (state.isAnswered) {
      main.replaceChildren(el("h1", {}, "No answer"), el("p", {}, error.message), button("Try again", begin));
    }
    state.isAnswered = false;
    return;
  }
  drawTop();
  frame();
  open();
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("logged-out", () => {
  if (session.csrf === null && session.role === "nobody") return;
  say("You are logged out.");
  begin();
});
window.addEventListener("hashchange", open);
setInterval(() => {
  if (document.hidden) return;
  if (!state.isAnswered) begin();
  else if (session.role !== "nobody") look();
}, LOOK_MS);
begin();
