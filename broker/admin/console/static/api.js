// Requests to this broker's API, and the session of the user.

export const RANKS = ["nobody", "viewer", "operator", "admin"];
export const session = { name: "", role: "nobody", csrf: null, needs_login: true };

/** Error answer of the broker: `status` is the HTTP status, `answer` the JSON of the answer. */
export class Refusal extends Error {
  constructor(status, answer) {
    super([answer.error ?? `the broker answered ${status}`, answer.detail].filter(Boolean).join(": "));
    this.status = status;
    this.answer = answer;
  }
}

export function may(role) {
  return RANKS.indexOf(session.role) >= RANKS.indexOf(role);
}

/** Send a request to the API, and return its answer. Throws Refusal, with status 0 if the broker does not answer. */
export async function ask(path, { method = "GET", query = {}, body, signal } = {}) {
  const known = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const words = new URLSearchParams(known).toString();
  const headers = {};
  if (session.csrf) headers["X-CSRF-Token"] = session.csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(`/api/v1${path}${words ? `?${words}` : ""}`, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { error: "this broker does not answer" });
  }
  let answer = {};
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (!response.ok) {
    const refusal = new Refusal(response.status, answer);
    if (response.status === 401 && path !== "/session") document.dispatchEvent(new CustomEvent("logged-out"));
    throw refusal;
  }
  return answer;
}

async function take(asked) {
  Object.assign(session, await asked);
  return session;
}

export function whoAmI() {
  return take(ask("/session"));
}

export function logIn(said) {
  return take(ask("/session", { method: "POST", body: said }));
}

export async function logOut() {
  await ask("/session", { method: "DELETE" });
  return whoAmI();
}

/** Encode a part of a path. Browsers remove the parts "." and ".."; the API accepts "~." and "~.." for them. */
export function part(text) {
  return encodeURIComponent(/^~*\.{1,2}$/.test(text) ? `~${text}` : text);
}

/** Return the API path of a destination. */
export function pathOf(kind, name) {
  return `/destinations/${kind}/${part(name)}`;
}
