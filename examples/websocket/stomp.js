/* STOMP 1.2 over WebSocket, for a browser, without a library.
 *
 *     const client = new StompClient(["ws://one:61614", "ws://two:61614"]);
 *     client.subscribe("/queue/orders", message => { show(message.body); message.ack(); });
 *     await client.send("/queue/orders", "hello");      // it is on the broker's disk now
 *
 * The URLs are those of a pair: the master answers, the standby does not. When a connection ends, the client tries the
 * next URL, subscribes again, and sends unconfirmed messages again with the same id, so that the broker stores each of
 * them once.
 */

const HEART_BEAT_MS = 10_000;
// Number of heart-beat intervals for which the broker may be silent.
const SILENT_INTERVALS_MAX = 2;
const DELAY_MS_MIN = 50;
const DELAY_MS_MAX = 2_000;
// Time limit for an answer, before the next URL is tried.
const CONNECT_MS_MAX = 5_000;
// Maximum number of messages that wait for their receipt; further ones are refused.
const UNCONFIRMED_MAX = 10_000;

export class StompClient {
  constructor(urls, { login, passcode, onState = () => {} } = {}) {
    this.urls = urls;
    this.isConnected = false;
    this.url = null;
    this._headers = { "accept-version": "1.2", host: "/", "heart-beat": `${HEART_BEAT_MS},${HEART_BEAT_MS}` };
    if (login !== undefined) Object.assign(this._headers, { login, passcode });
    this._onState = onState;
    this._subscriptions = new Map();
    this._unconfirmed = new Map(); // by receipt, in the order of sending
    this._producer = crypto.getRandomValues(new Uint32Array(4)).join("-");
    this._sent = 0;
    this._next = 0; // index of the URL to try
    this._delay = DELAY_MS_MIN;
    this._isOver = false;
    this._connect();
  }

  /* Call onMessage with each message of a destination: {headers, body, ack()}. Unacknowledged messages are delivered
   * again. */
  subscribe(destination, onMessage, headers = {}) {
    const id = `${this._subscriptions.size + 1}`;
    const all = { id, destination, ack: "client-individual", ...headers };
    this._subscriptions.set(id, { headers: all, onMessage });
    if (this.isConnected) this._say("SUBSCRIBE", all);
  }

  /* Return a promise that resolves when the broker has stored the message, also if it had to be sent several times. */
  send(destination, body, headers = {}) {
    if (this._unconfirmed.size >= UNCONFIRMED_MAX) return Promise.reject(new Error("too much is not confirmed"));
    const number = ++this._sent;
    const receipt = `s-${number}`;
    const all = {
      destination, receipt, persistent: "true", "content-type": "text/plain;charset=utf-8",
      "tandemmq-send-id": `${this._producer}:${number}`, ...headers,
    };
    return new Promise((resolve, reject) => {
      this._unconfirmed.set(receipt, { headers: all, body, resolve, reject });
      if (this.isConnected) this._say("SEND", all, body);
    });
  }

  close() {
    this._isOver = true;
    clearTimeout(this._again);
    if (this._socket) this._socket.close(1000);
  }

  // ---- one connection after the other

  _connect() {
    const url = this.urls[this._next];
    const socket = new WebSocket(url, ["v12.stomp"]);
    socket.binaryType = "arraybuffer";
    this._socket = socket;
    const parser = new FrameParser();
    const late = setTimeout(() => this._lose(socket), CONNECT_MS_MAX);
    socket.onopen = () => this._say("CONNECT", this._headers);
    socket.onmessage = event => {
      if (socket !== this._socket) return;
      this._heard = Date.now();
      for (const frame of parser.feed(event.data)) this._take(frame, url, late);
    };
    socket.onclose = () => {
      clearTimeout(late);
      this._lose(socket);
    };
  }

  /* Give up a connection, and try the next URL soon. The delay grows after each round over all URLs. */
  _lose(socket) {
    if (socket !== this._socket) return;
    socket.close();
    this._socket = null;
    clearInterval(this._beat);
    const was = this.isConnected;
    this.isConnected = false;
    if (was) this._onState("disconnected", this.url);
    if (this._isOver) return;
    this._next = (this._next + 1) % this.urls.length;
    this._again = setTimeout(() => this._connect(), this._delay);
    if (this._next === 0) this._delay = Math.min(this._delay * 2, DELAY_MS_MAX);
  }

  _take(frame, url, late) {
    const { command, headers, body } = frame;
    if (command === "CONNECTED") {
      clearTimeout(late);
      this._begin(headers, url);
    } else if (command === "MESSAGE") {
      const subscription = this._subscriptions.get(headers.subscription);
      const socket = this._socket;
      const ack = () => { if (socket === this._socket) this._say("ACK", { id: headers.ack }); };
      if (subscription) subscription.onMessage({ headers, body, ack });
    } else if (command === "RECEIPT") {
      const waiting = this._unconfirmed.get(headers["receipt-id"]);
      this._unconfirmed.delete(headers["receipt-id"]);
      if (waiting) waiting.resolve();
    } else if (command === "ERROR") {
      const waiting = this._unconfirmed.get(headers["receipt-id"]);
      this._unconfirmed.delete(headers["receipt-id"]);
      if (waiting) waiting.reject(new Error(headers.message));
      else this._onState("error", `${headers.message}: ${body}`);
    }
  }

  _begin(headers, url) {
    this.isConnected = true;
    this.url = url;
    this._delay = DELAY_MS_MIN;
    const [theirs, ours] = headers["heart-beat"].split(",").map(Number);
    this._heard = Date.now();
    const socket = this._socket;
    const interval = Math.min(theirs || Infinity, ours || Infinity) / 2;
    if (interval < Infinity) {
      this._beat = setInterval(() => {
        if (theirs && Date.now() - this._heard > theirs * SILENT_INTERVALS_MAX) this._lose(socket);
        else if (ours) socket.send("\n");
      }, interval);
    }
    for (const { headers } of this._subscriptions.values()) this._say("SUBSCRIBE", headers);
    for (const { headers, body } of this._unconfirmed.values()) this._say("SEND", headers, body);
    this._onState("connected", url);
  }

  _say(command, headers, body = "") {
    const lines = Object.entries(headers).map(([name, value]) => {
      // STOMP 1.2, Value Encoding: a CONNECT is not escaped.
      return command === "CONNECT" ? `${name}:${value}` : `${escaped(name)}:${escaped(`${value}`)}`;
    });
    if (command === "SEND") lines.push(`content-length:${new TextEncoder().encode(body).length}`);
    if (this._socket && this._socket.readyState === WebSocket.OPEN) {
      this._socket.send(`${command}\n${lines.join("\n")}\n\n${body}\0`);
    }
  }
}

/* Parse frames from text or binary messages. A frame can arrive in several messages, and a message can contain several
 * frames. */
export class FrameParser {
  constructor() {
    this._rest = new Uint8Array();
  }

  feed(data) {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : new Uint8Array(data);
    const whole = new Uint8Array(this._rest.length + bytes.length);
    whole.set(this._rest);
    whole.set(bytes, this._rest.length);
    const frames = [];
    let at = 0;
    for (;;) {
      while (whole[at] === 10 || whole[at] === 13) at += 1; // heart-beats
      const found = this._frame(whole, at);
      if (!found) break;
      frames.push(found.frame);
      at = found.end;
    }
    this._rest = whole.slice(at);
    return frames;
  }

  _frame(bytes, start) {
    let body = start;
    while (body < bytes.length && !(bytes[body - 1] === 10 && bytes[body] === 10)) body += 1;
    if (body >= bytes.length) return null;
    body += 1;
    const [command, ...lines] = text(bytes.subarray(start, body - 2)).split("\n");
    const headers = {};
    for (const line of lines) {
      const colon = line.indexOf(":");
      const name = unescaped(line.slice(0, colon));
      if (!(name in headers)) headers[name] = unescaped(line.slice(colon + 1)); // the first one counts
    }
    const length = headers["content-length"];
    const end = length === undefined ? bytes.indexOf(0, body) : body + Number(length);
    if (end < 0 || end >= bytes.length) return null;
    return { frame: { command, headers, body: text(bytes.subarray(body, end)) }, end: end + 1 };
  }
}

function text(bytes) {
  return new TextDecoder().decode(bytes);
}

const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c" };
const UNESCAPES = { "\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":" };

function escaped(value) {
  return value.replace(/[\\\n\r:]/g, sign => ESCAPES[sign]);
}

function unescaped(value) {
  return value.replace(/\\./g, pair => UNESCAPES[pair] ?? pair);
}
