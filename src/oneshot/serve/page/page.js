// The page: sends questions to the service, shows the answers, and keeps the question in the URL.

import { suggest } from "./combobox.js";
import { draw } from "./drawing.js";

const $ = (id) => document.getElementById(id);
const DIGITS = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const SCORE = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
let relations = [];
let readOnly = false;
let asking = 0; // number of the latest question; responses to older ones are discarded

class Refusal extends Error {
  constructor(problem) {
    const errors = (problem.errors || []).map((error) => error.detail);
    super([problem.detail || problem.title, ...errors].join("; "));
    this.status = problem.status;
  }
}

async function call(path, body, method = "POST") {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = body ? { method, headers, body: JSON.stringify(body) } : { headers };
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

function element(tag, content, attributes = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...[content].flat());
  return made;
}

// A name, isolated from the text around it: it may be written from right to left.
function name(text) { return element("bdi", text); }

function showStatus(text) { $("status").textContent = text; }
function showError(error, where = $("problem")) {
  if (where === $("problem")) showStatus("");
  where.textContent = error.message;
}

// The question is part of the URL: it can be linked to, and the back button works.

function address(question) {
  const values = { entity: question.entity, relation: question.relation };
  if (question.inverse) values.inverse = "1";
  if (question.excludeKnown) values.new = "1";
  return `#${new URLSearchParams(values)}`;
}

function fromAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  if (!values.get("entity")) return null;
  return {
    entity: values.get("entity"),
    relation: values.get("relation") || "",
    inverse: values.get("inverse") === "1",
    excludeKnown: values.get("new") === "1",
  };
}

function fromForm() {
  return {
    entity: $("entity").value,
    relation: $("relation").value,
    inverse: $("inverse").checked,
    excludeKnown: $("exclude-known").checked,
  };
}

function go(question) {
  const target = address(question);
  if (location.hash === target) ask(question);
  else location.hash = target; // the hashchange event asks
}

let focusAnswers = false; // whether what had the focus is about to be replaced

function walk(entity) {
  focusAnswers = true;
  go({ ...fromForm(), entity });
}

// Questions and answers.

async function ask(question) {
  const number = ++asking;
  $("entity").value = question.entity;
  $("relation").value = question.relation;
  $("inverse").checked = question.inverse;
  $("exclude-known").checked = question.excludeKnown;
  $("head").value = question.entity;
  $("problem").textContent = "";
  showFacts(question.entity, number);
  if (!question.relation) {
    $("relation").focus();
    return;
  }
  showStatus("Asking …");
  try {
    const { entity, relation, inverse } = question;
    const { results: [result] } = await call("v1/predict", {
      questions: [{ entity, relation, inverse }],
      top: 10,
      exclude_known: question.excludeKnown,
    });
    if (number !== asking) return;
    showAnswers(question, result);
    if (focusAnswers) $("answers-title").focus();
    focusAnswers = false;
    $("why").hidden = true; // it belongs to the previous question
    if (result.answers.length) await why(question, result.answers[0].entity, number);
  } catch (error) {
    if (number !== asking) return;
    $("answers-card").hidden = $("why").hidden = true; // they belong to the previous question
    showError(error);
  }
}

function showAnswers(question, result) {
  const { answers, subgraph, milliseconds, query } = result;
  $("answers-card").hidden = false;
  $("answers-title").replaceChildren("(", name(query.entity), ", ", name(query.relation), ", ?)");
  $("answers").tBodies[0].replaceChildren(...answers.map((answer, number) => {
    const { entity, score, probability, known } = answer;
    // A fact of the graph holds, whatever the predictor would expect without it.
    const chance = known || probability === null ? "" : [
      element("meter", "", { value: probability, "aria-hidden": "true" }),
      ` ${(100 * probability).toFixed(probability < 0.1 ? 1 : 0)}%`,
    ];
    const open = element("button", name(entity), {
      type: "button", class: "link", onclick: () => why(question, entity, ++asking),
    });
    const mark = known ? element("span", "known", { class: "known" }) : "";
    return element("tr", [
      element("td", String(number + 1)), element("td", open),
      element("td", SCORE.format(score)), element("td", chance), element("td", mark),
    ], { "data-answer": entity });
  }));
  const steps = Object.entries(milliseconds).filter(([step]) => step !== "batch");
  $("times").replaceChildren(...steps.map(([step, value]) => element("div", [
    element("dt", step), element("dd", `${DIGITS.format(value)} ms`),
  ])));
  const found = answers.length === 1 ? "1 answer" : `${answers.length} answers`;
  const size = `from ${DIGITS.format(subgraph.entities)} entities and ` +
    `${DIGITS.format(subgraph.edges)} edges`;
  showStatus(result.message ? `No answer: ${result.message}` : `${found} ${size}.`);
}

async function why(question, answer, number) {
  for (const row of $("answers").tBodies[0].rows) {
    row.setAttribute("aria-current", String(row.dataset.answer === answer));
  }
  $("why").hidden = false;
  $("why").setAttribute("aria-busy", "true");
  $("why-title").replaceChildren("Why ", name(answer), "?");
  $("why-problem").textContent = "";
  for (const id of ["paths", "drawing", "charts"]) $(id).replaceChildren();
  try {
    const { entity, relation, inverse } = question;
    const explanation = await call("v1/explain", {
      entity, relation, inverse, answer, drawing: true,
    });
    if (number !== asking) return;
    $("paths").replaceChildren(...explanation.paths.map(pathInWords));
    if (!explanation.paths.length) $("paths").replaceChildren(element("li", explanation.message));
    draw($("drawing"), explanation.drawing, walk);
    $("charts").replaceChildren(...explanation.charts.map((chart) => {
      const container = element("div", "");
      draw(container, chart, walk);
      return container;
    }));
    for (const [step, value] of Object.entries(explanation.milliseconds)) {
      [...$("times").children].filter((row) => row.firstChild.textContent === step)
        .forEach((row) => row.remove());
      $("times").append(element("div", [
        element("dt", step), element("dd", `${DIGITS.format(value)} ms`),
      ]));
    }
  } catch (error) {
    if (number === asking) showError(error, $("why-problem"));
  } finally {
    if (number === asking) $("why").removeAttribute("aria-busy");
  }
}

function pathInWords(path) {
  const words = [name(path.steps[0].source)];
  for (const step of path.steps) words.push(" —", name(step.relation), "→ ", name(step.target));
  const more = path.parallel ? `, ${path.parallel} more by parallel facts` : "";
  const note = path.known ? ", the known fact itself" : "";
  const figures = `weight ${SCORE.format(path.weight)}, score without it ` +
    `${SCORE.format(path.score_without)}${more}${note}`;
  return element("li", [...words, " ", element("small", figures)]);
}

// Facts about an entity, and changes to them.

async function showFacts(entity, number) {
  try {
    const around = await call(`v1/entities/${encodeURIComponent(entity)}?limit=50`);
    if (number !== asking) return;
    $("around").hidden = false;
    const shown = around.facts.length < around.total ? `${around.facts.length} of ` : "";
    $("facts-title").replaceChildren("Facts about ", name(entity), ` (${shown}${around.total})`);
    $("facts").replaceChildren(...around.facts.map((fact) => factLine(fact, entity)));
  } catch (error) {
    if (number !== asking) return;
    $("around").hidden = true;
    if (error.status !== 404) showError(error);
  }
}

function factLine(fact, entity) {
  const [head, relation, tail] = fact;
  const link = (which) => which === entity ? name(which) : element("button", name(which), {
    type: "button", class: "link", onclick: () => walk(which),
  });
  const remove = element("button", "×", {
    type: "button", class: "small", "aria-label": `Remove ${head}, ${relation}, ${tail}`,
    onclick: () => change([fact], "DELETE"),
  });
  const words = element("span", [link(head), " —", name(relation), "→ ", link(tail)]);
  return element("li", readOnly ? [words] : [words, remove]);
}

async function change(facts, method) {
  $("problem").textContent = "";
  $("add-problem").textContent = "";
  $("added").replaceChildren();
  try {
    const done = await call("v1/facts", { facts }, method);
    const outcome = method === "DELETE" ? "Removed" : done.added ? "Added" : "Already known";
    const words = facts[0].flatMap((part, number) => number ? [", ", name(part)] : [name(part)]);
    $("added").replaceChildren(`${outcome}: `, ...words, ".");
    if (done.added || done.removed) {
      const opposite = method === "DELETE" ? "POST" : "DELETE";
      $("added").append(" ", element("button", "Undo", {
        type: "button", class: "small", onclick: () => change(facts, opposite),
      }));
    }
    call("v1/readyz").then(count, () => {}); // in the background
  } catch (error) {
    showError(error, $("add-problem"));
    return false;
  }
  const question = fromForm();
  if (question.entity && (method === "DELETE" || facts[0].includes(question.entity))) ask(question);
  return true;
}

// Event handlers.

const findEntities = async (text) => {
  const query = new URLSearchParams({ search: text, limit: "10" });
  return (await call(`v1/entities?${query}`)).entities;
};
const findRelations = async (text) => {
  const wanted = text.toLowerCase();
  const begins = relations.filter((name) => name.toLowerCase().startsWith(wanted));
  const holds = relations.filter(
    (name) => !begins.includes(name) && name.toLowerCase().includes(wanted));
  return [...begins, ...holds].slice(0, 50);
};

for (const id of ["entity", "head", "tail"]) suggest($(id), findEntities);
for (const id of ["relation", "label"]) suggest($(id), findRelations, { delay: 0 });

// The name that a text stands for: itself, or the only suggestion that begins with it.
async function completed(text, find) {
  const found = await find(text);
  if (!text || found.includes(text)) return text;
  const plain = text.toLowerCase();
  const begins = found.filter((one) => one.toLowerCase().startsWith(plain));
  return begins.length === 1 ? begins[0] : text;
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = fromForm();
  try {
    question.entity = await completed(question.entity, findEntities);
    question.relation = await completed(question.relation, findRelations);
  } catch (error) {
    showError(error);
    return;
  }
  go(question);
});
$("add").addEventListener("submit", async (event) => {
  event.preventDefault();
  const fact = [$("head").value, $("label").value, $("tail").value];
  if (!(await change([fact], "POST"))) return;
  $("tail").value = "";
  // Ask about the head of the new fact, with the current relation or else that of the fact.
  go({ ...fromForm(), entity: fact[0], relation: $("relation").value || fact[1] });
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("token-form").hidden = true;
  start();
});
window.addEventListener("hashchange", () => {
  const question = fromAddress();
  if (question) ask(question);
});

function count(state) {
  $("about").textContent = `${DIGITS.format(state.entities)} entities, ` +
    `${DIGITS.format(state.relations)} relations, ${DIGITS.format(state.facts)} facts.`;
}

async function start() {
  $("problem").textContent = "";
  try {
    relations = (await call("v1/relations")).relations;
    const state = await call("v1/readyz");
    readOnly = state.read_only;
    $("add-card").hidden = readOnly;
    count(state);
    const question = fromAddress();
    if (question) ask(question);
  } catch (error) {
    showError(error);
  }
}
start();
