/* The page: index.html?urls=ws://one:61614,ws://two:61614&destination=/queue/example */

import { StompClient } from "./stomp.js";

const SHOWN_MAX = 50;
const query = new URLSearchParams(location.search);
const urls = (query.get("urls") ?? "ws://127.0.0.1:61614,ws://127.0.0.1:61615").split(",");
const destination = query.get("destination") ?? "/queue/example";
const find = id => document.getElementById(id);

const client = new StompClient(urls, {
  login: query.get("login") ?? undefined,
  passcode: query.get("passcode") ?? undefined,
  onState(state, detail) {
    find("state").dataset.state = state;
    find("state").textContent = state === "connected" ? `connected to ${detail}` : `${state}: ${detail}`;
  },
});

function count(id) {
  find(id).textContent = Number(find(id).textContent) + 1;
}

// A message whose acknowledgement was lost with its broker is delivered again. Its id shows that, and it is shown once.
const seen = new Set();

client.subscribe(destination, message => {
  message.ack();
  if (seen.has(message.headers["message-id"])) return;
  seen.add(message.headers["message-id"]);
  if (seen.size > 10_000) seen.delete(seen.values().next().value);
  const item = document.createElement("li");
  const from = document.createElement("span");
  from.className = "from";
  from.textContent = ` by ${client.url}`;
  item.append(message.body, from);
  find("messages").prepend(item);
  if (find("messages").children.length > SHOWN_MAX) find("messages").lastChild.remove();
  count("taken");
});

async function send(body) {
  count("sent");
  try {
    await client.send(destination, body);
    count("confirmed");
  } catch (error) {
    find("state").textContent = `refused: ${error.message}`;
  }
}

find("form").addEventListener("submit", event => {
  event.preventDefault();
  send(find("body").value);
  find("body").value = "";
});

let number = 0;
setInterval(() => {
  if (find("every").checked) send(`number ${++number}`);
}, 200);
