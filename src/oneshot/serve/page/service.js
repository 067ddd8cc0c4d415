// Calls of the service, and the labels of its entities and relations.

import { $, isolated, visible } from "./dom.js";

export class Refusal extends Error {
  constructor(problem) {
    const errors = (problem.errors || []).map((error) => error.detail);
    super([problem.detail || problem.title, ...errors].join("; "));
    this.status = problem.status;
  }
}

// `signal`: of an AbortController; the service stops what its client has left.
export async function call(path, body, { method = "POST", signal } = {}) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = body
    ? { method, headers, signal, body: JSON.stringify(body) } : { headers, signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refusal({ title: "The service cannot be reached." });
  }
  let value;
  try {
    value = await response.json();
  } catch { // not from the service, for example from a proxy
    throw new Refusal({ title: `The response is not from the service (${response.status}).` });
  }
  if (!response.ok) {
    if (response.status === 401) {
      $("token-form").hidden = false;
      $("token").focus();
    }
    throw new Refusal(value);
  }
  return value;
}

// A request as a command for a shell; a token is not part of it.
export function curl(path, body) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = [`curl -s ${quoted(new URL(path, document.baseURI).href)}`];
  if (sessionStorage.getItem("token")) parts.push('-H "Authorization: Bearer $ONESHOT_TOKEN"');
  parts.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  return parts.join(" \\\n  ");
}

// Labels: what is shown for a name that is an id. The service may have none.

let hasLabels = false;
const labels = new Map();

export function useLabels(given, more = {}) {
  hasLabels = given;
  remember(more);
}

export function remember(more = {}) {
  for (const [name, label] of Object.entries(more)) labels.set(name, label);
}

// Fetch the labels of entities before they are shown.
export async function learn(entities) {
  if (!hasLabels) return;
  const unknown = [...new Set(entities)].filter((one) => one && !labels.has(one));
  for (let start = 0; start < unknown.length; start += 1000) {
    const some = unknown.slice(start, start + 1000);
    const found = (await call("v1/labels", { entities: some })).labels;
    // Only those that the service has sent: every object has a property "constructor".
    for (const one of some) labels.set(one, Object.hasOwn(found, one) ? found[one] : one);
  }
}

const INVERSE = "⁻¹";

export function labelOf(text) {
  if (labels.has(text)) return labels.get(text);
  const plain = text.endsWith(INVERSE) ? text.slice(0, -INVERSE.length) : text;
  return labels.has(plain) ? labels.get(plain) + text.slice(plain.length) : text;
}

// The same, to be shown as plain text.
export function textOf(text) {
  return visible(labelOf(text));
}

// The same, as an element.
export function name(text) {
  const label = labelOf(text);
  return label === text ? isolated(text) : isolated(label, `${label} (${text})`);
}
