// Requests to this broker's API, and who asks.

export const RANKS = ["nobody", "viewer", "operator", "admin"];
export const session = { name: "", role: "nobody", csrf: null, needs_login: true };

/** The broker said no: `status` is the code, `answer` what it told. */
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

/** What the API answers; throws Refusal, or another error when nobody answers. */
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

/** A part of a path. Browsers take "." and ".." out of a path; the API knows them by "~." and "~..". */
export function part(text) {
  return encodeURIComponent(/^~*\.{1,2}$/.test(text) ? `~${text}` : text);
}

/** The path of a destination's page of the API. */
export function pathOf(kind, name) {
  return `/destinations/${kind}/${part(name)}`;
}
