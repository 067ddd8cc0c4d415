// The page: sends questions to the service, shows the answers, and keeps the question in the URL.

import { body, FIRST, forgetTimes, larger, showAnswers, showTimes } from "./answers.js";
import { suggest } from "./combobox.js";
import { $, DIGITS, element, fileName, nameIn, plural, setName, visible } from "./dom.js";
import { draw, Drawing } from "./drawing.js";
import { check, Facts, namesOfPaths, pathInWords } from "./facts.js";
import { call, labelOf, learn, name, remember, textOf, useLabels } from "./service.js";

const TITLE = document.title;
const EXAMPLES = 4;
let relations = [];
let counts = {};
let asking = 0; // number of the latest question; responses to older ones are discarded
let checking = 0; // the same of checked facts
let shown = null; // the question whose answers are shown, with its result and the answer explained
let explaining = null; // the AbortController of the explanation that is being computed
let before = null; // the same before a change

function showStatus(text) { $("status").textContent = text; }
function showError(error, where = $("problem")) {
  if (where === $("problem")) showStatus("");
  where.textContent = visible(error.message);
}

const facts = new Facts({ walk, changed, failed: showError });
const drawing = new Drawing($("drawing"), {
  walk, failed: (error) => showError(error, $("why-problem")),
});

// The question is part of the URL: it can be linked to, and the back button works.

function address(question) {
  const values = { entity: question.entity, relation: question.relation };
  if (question.inverse) values.inverse = "1";
  if (question.excludeKnown) values.new = "1";
  if (question.top && question.top !== FIRST) values.top = question.top;
  if (question.minProbability) values.min = question.minProbability;
  if (question.typeRelation && question.typeEntity) {
    values.with = question.typeRelation;
    values.to = question.typeEntity;
  }
  if (question.why) values.why = question.why;
  return `#${new URLSearchParams(values)}`;
}

function fromAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  if (!values.get("entity")) return null;
  const number = (key, most) => Math.min(Math.max(Number(values.get(key)) || 0, 0), most);
  return {
    entity: values.get("entity"),
    relation: values.get("relation") || "",
    inverse: values.get("inverse") === "1",
    excludeKnown: values.get("new") === "1",
    top: Math.round(number("top", 1000)) || FIRST,
    minProbability: number("min", 100),
    typeRelation: values.get("with") || "",
    typeEntity: values.get("to") || "",
    why: values.get("why") || "",
  };
}

function factFromAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  const fact = ["head", "label", "tail"].map((key) => values.get(key) || "");
  return fact.every(Boolean) ? fact : null;
}

const isAsked = () => Boolean(fromAddress() || factFromAddress());

function fromForm() {
  return {
    entity: nameIn($("entity")),
    relation: nameIn($("relation")),
    inverse: $("inverse").checked,
    excludeKnown: $("exclude-known").checked,
    top: FIRST,
    minProbability: Number($("min-probability").value) || 0,
    typeRelation: nameIn($("type-relation")),
    typeEntity: nameIn($("type-entity")),
    why: "",
  };
}

function fill(question) {
  setName($("entity"), question.entity);
  setName($("relation"), question.relation);
  $("inverse").checked = question.inverse;
  $("exclude-known").checked = question.excludeKnown;
  $("min-probability").value = question.minProbability || "";
  setName($("type-relation"), question.typeRelation);
  setName($("type-entity"), question.typeEntity);
  if (question.minProbability || question.typeRelation) $("filters").open = true;
  setName($("head"), question.entity);
}

const key = (question) => address({ ...question, why: "" });

function go(question) {
  const target = address(question);
  if (location.hash === target) ask(question);
  else location.hash = target; // the hashchange event asks
}

function route() {
  const question = fromAddress();
  const fact = factFromAddress();
  if (question) {
    if (!shown || key(question) !== key(shown.question)) {
      ask(question);
    } else if (question.why) {
      why(question, ++asking);
    } else { // back from an explanation
      asking += 1;
      document.title = titleOf(question);
      offerExplanation();
    }
  } else if (fact) {
    ["head", "label", "tail"].forEach((id, number) => setName($(id), fact[number]));
    checkFact(fact);
  } else {
    asking += 1; // what is still being asked is not shown
    explaining?.abort();
    shown = null;
    document.title = TITLE;
    showStatus("");
    for (const id of ["answers-card", "why", "around"]) $(id).hidden = true;
    showExamples().catch(showError);
  }
}

let focusAnswers = false; // whether what had the focus is about to be replaced

function walk(entity) {
  focusAnswers = true;
  go({ ...fromForm(), entity });
}

// Questions and answers.

async function ask(question) {
  const number = ++asking;
  explaining?.abort();
  fill(question);
  $("examples").hidden = true;
  $("problem").textContent = "";
  const around = facts.show(question.entity);
  if (!question.relation) {
    document.title = `${textOf(question.entity)} · oneshot`;
    await around;
    $("relation").focus();
    return;
  }
  document.title = titleOf(question);
  showStatistics();
  showStatus("Asking …");
  try {
    const { results: [result] } = await call("v1/predict", body(question));
    await learn([question.entity, ...result.answers.map((one) => one.entity)]);
    if (number !== asking) return;
    document.title = titleOf(question);
    const old = before && before.key === key(question) && before.result.version !== result.version
      ? before.result : null;
    if (!old) before = null; // it belongs to another question
    shown = { question, result, explained: "" };
    forgetTimes();
    showStatus(showAnswers(question, result, old, open));
    if (focusAnswers) $("answers-title").focus();
    focusAnswers = false;
    if (question.why) await why(question, number);
    else offerExplanation();
  } catch (error) {
    if (number === asking) refused(error);
  }
}

// A question without answers: those that are shown belong to another one.
function refused(error) {
  asking += 1;
  explaining?.abort();
  shown = null;
  $("answers-card").hidden = $("why").hidden = true;
  showError(error);
  if (focusAnswers && error.status !== 401) $("problem").focus(); // else the token is asked for
  focusAnswers = false;
}

function titleOf({ entity, relation, inverse }) {
  const known = textOf(entity);
  const between = textOf(relation);
  return `${inverse ? `(?, ${between}, ${known})` : `(${known}, ${between}, ?)`} · oneshot`;
}

// Explanations take several times as long as the answers, so they are computed on request.

// Mark an answer as the one that is explained; none, with an empty name.
function mark(answer) {
  shown.explained = answer;
  for (const row of $("answers").tBodies[0].rows) {
    row.setAttribute("aria-current", String(row.dataset.answer === answer));
  }
}

// The place of the explanation without one, and how to get one.
function offerExplanation() {
  explaining?.abort();
  mark("");
  $("why").hidden = shown.result.answers.length === 0;
  $("why").removeAttribute("aria-busy");
  $("why-title").textContent = "Explanation";
  $("why-status").textContent = "Select an answer to see why it was given: the paths that lead to " +
    "it, a drawing and statistics of the subgraph. With the keyboard, stay on it for a moment.";
  $("why-problem").textContent = "";
  $("explanation").hidden = true;
}

// Explain an answer that was selected, or on which the focus of the keyboard rests.
function open(answer, rests) {
  const target = address({ ...shown.question, why: answer });
  if (shown.explained === answer && (rests || location.hash === target)) return;
  if (rests) history.replaceState(null, "", target); // going back leads to the question before
  if (location.hash === target) route();
  else location.hash = target;
}

async function why(question, number) {
  const answer = question.why;
  explaining?.abort();
  explaining = new AbortController();
  mark(answer);
  $("why").hidden = false;
  $("why").setAttribute("aria-busy", "true");
  $("why-title").replaceChildren("Why ", name(answer), "?");
  $("why-status").textContent = "Explaining …";
  $("why-problem").textContent = "";
  for (const id of ["paths", "drawing", "charts"]) $(id).replaceChildren();
  $("explanation").hidden = true;
  document.title = `Why ${textOf(answer)}? ${titleOf(question)}`;
  try {
    const { entity, relation, inverse } = question;
    const explanation = await call("v1/explain", {
      entity, relation, inverse, answer, drawing: true,
    }, { signal: explaining.signal });
    await learn([answer, ...namesOfPaths(explanation.paths)]);
    if (number !== asking) return;
    $("why-title").replaceChildren("Why ", name(answer), "?");
    $("paths").replaceChildren(...explanation.paths.map(pathInWords));
    if (!explanation.paths.length) {
      $("paths").replaceChildren(element("li", explanation.message, { class: "message" }));
    }
    const entities = [...explanation.drawing.matchAll(/data-entity="([^"]*)"/g)].length;
    if (entities) await learnDrawn(explanation.drawing);
    if (number !== asking) return;
    $("why-status").textContent = "";
    $("explanation").hidden = false;
    drawing.show(explanation.drawing);
    $("charts").replaceChildren(...explanation.charts.map((chart) => {
      const container = element("div", "");
      draw(container, chart);
      return container;
    }));
    showTimes(explanation.milliseconds);
  } catch (error) {
    if (number !== asking) return;
    shown.explained = ""; // it can be selected again
    $("why-status").textContent = "";
    showError(error, $("why-problem"));
  } finally {
    if (number === asking) $("why").removeAttribute("aria-busy");
  }
}

// The labels of the entities of a drawing, for screen readers.
async function learnDrawn(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml");
  await learn([...parsed.querySelectorAll("[data-entity]")].map((one) => one.dataset.entity));
}

// What is shown after a change of facts.
async function changed(some, method) {
  call("v1/readyz").then(count, () => {}); // in the background
  call("v1/relations").then((found) => { counts = found.counts; }, () => {});
  const question = fromForm();
  if (shown && key(shown.question) === key({ ...question, top: shown.question.top })) {
    before = { key: key(shown.question), result: shown.result };
    await ask({ ...shown.question, why: shown.explained });
  } else if (method === "POST") {
    // Ask about the head of the new fact, with the current relation or else that of the fact.
    go({ ...question, entity: some[0][0], relation: question.relation || some[0][1] });
  } else if (question.entity) {
    await facts.show(question.entity);
  }
}

async function checkFact(fact) {
  const number = ++checking;
  $("add-problem").textContent = "";
  $("checked").replaceChildren("Checking …");
  try {
    const found = await check(fact);
    if (number !== checking) return;
    $("checked").replaceChildren(...found);
    document.title = `${fact.map(textOf).join(", ")}? · oneshot`;
  } catch (error) {
    if (number !== checking) return;
    $("checked").replaceChildren();
    showError(error, $("add-problem"));
  }
}

// Statistics of the relation, read when they are opened.

let described = "";

async function showStatistics() {
  const relation = nameIn($("relation")).replace(/⁻¹$/, "");
  const details = $("statistics");
  details.hidden = !relations.includes(relation);
  if (details.hidden || !details.open || described === relation) return;
  described = relation;
  const problem = details.querySelector(".problem");
  problem.textContent = "";
  try {
    const found = await call(`v1/relations/${encodeURIComponent(relation)}`);
    const ends = [...found.top_heads, ...found.top_tails].map((one) => one.entity);
    await learn(ends);
    if (described !== relation) return;
    const list = (rows) => rows.flatMap((one, at) => [
      ...(at ? [", "] : []), name(one.entity), ` (${DIGITS.format(one.facts)})`]);
    const rows = [
      ["relation", [name(relation)]],
      ["facts", [DIGITS.format(found.facts)]],
      ["different heads", [DIGITS.format(found.heads)]],
      ["different tails", [DIGITS.format(found.tails)]],
      ["most frequent heads", list(found.top_heads)],
      ["most frequent tails", list(found.top_tails)],
    ];
    details.querySelector("dl").replaceChildren(...rows.map(([term, value]) => element("div", [
      element("dt", term), element("dd", value)])));
  } catch (error) {
    described = "";
    showError(error, problem);
  }
}

// Example questions on the empty page: entities with many facts, each with another relation.
async function showExamples() {
  if ($("examples").querySelector("a")) {
    $("examples").hidden = false;
    return;
  }
  const [{ entities }, { changes }] = await Promise.all([
    call("v1/entities?search=&limit=100"), call("v1/changes?limit=1000")]);
  // New entities come first, however few facts they have: those of changes are the last choice.
  const inChanges = new Set(changes.flatMap(({ fact: [head, , tail] }) => [head, tail]));
  entities.sort((one, other) => inChanges.has(one) - inChanges.has(other));
  const some = entities.slice(0, 8);
  const around = await Promise.all(some.map((entity) => (
    call(`v1/entities/${encodeURIComponent(entity)}?limit=1`).catch((error) => {
      // No browser sends "." or ".." as a part of a path.
      if (error.status === 404) return { entity, relations: [], total: 0 };
      throw error;
    }))));
  around.sort((one, other) => other.total - one.total);
  const examples = new Map();
  for (const { entity, relations: own } of around) {
    const other = own.find((one) => !examples.has(one.relation));
    if (other && examples.size < EXAMPLES) {
      examples.set(other.relation, { entity, relation: other.relation, inverse: other.inverse });
    }
  }
  await learn(some);
  $("examples").querySelector("ul").replaceChildren(...[...examples.values()].map((one) => {
    const [entity, relation] = [name(one.entity), name(one.relation)];
    const words = one.inverse
      ? ["(?, ", relation, ", ", entity, ")"] : ["(", entity, ", ", relation, ", ?)"];
    return element("li", element("a", words, { href: address(one) }));
  }));
  $("examples").hidden = examples.size === 0 || isAsked();
}

// Suggestions.

const findEntities = async (text) => {
  const query = new URLSearchParams({ search: text, limit: "10" });
  const found = await call(`v1/entities?${query}`);
  remember(found.labels);
  return found.entities.map((one) => (labelOf(one) === one
    ? one : { name: one, text: labelOf(one), note: one }));
};
// Relations of the entity first, then those with the most facts.
const findRelations = (ofEntity) => async (text) => {
  const wanted = text.toLowerCase();
  const own = new Map();
  if (ofEntity && facts.entity === nameIn($("entity"))) {
    for (const one of facts.relations) {
      own.set(one.relation, (own.get(one.relation) || 0) + one.facts);
    }
  }
  const words = (one) => [one.toLowerCase(), labelOf(one).toLowerCase()];
  const rank = (one) => {
    const begins = words(one).some((word) => word.startsWith(wanted));
    return [begins ? 0 : 1, -(own.get(one) || 0), -(counts[one] || 0)];
  };
  const ranked = relations.filter((one) => words(one).some((word) => word.includes(wanted)))
    .map((one) => ({ one, rank: rank(one) }));
  ranked.sort((a, b) => a.rank[0] - b.rank[0] || a.rank[1] - b.rank[1] || a.rank[2] - b.rank[2]);
  return ranked.slice(0, 50).map(({ one }) => ({
    name: one,
    text: labelOf(one),
    note: [labelOf(one) === one ? "" : one, own.has(one)
      ? `${DIGITS.format(own.get(one))} here, ${plural(counts[one] || 0, "fact")}`
      : plural(counts[one] || 0, "fact")].filter(Boolean).join(", "),
  }));
};

for (const id of ["entity", "head", "tail", "type-entity"]) suggest($(id), findEntities);
for (const id of ["relation", "label", "type-relation"]) {
  suggest($(id), findRelations(id === "relation"), { delay: 0 });
}

const suggested = async (text, find) => (
  (await find(text)).map((one) => (typeof one === "string" ? { name: one } : one)));

// The name that a text stands for: itself if it is known, or without the spaces around it.
async function exact(text, find) {
  const found = text === text.trim() ? [] : await suggested(text, find);
  return found.some((one) => one.name === text) ? text : text.trim();
}

// The same, or the only suggestion that begins with it.
async function completed(given, find) {
  const text = await exact(given, find);
  const found = await suggested(text, find);
  if (!text || found.some((one) => one.name === text)) return text;
  const plain = text.toLowerCase();
  const begins = found.filter((one) => one.name.toLowerCase().startsWith(plain) ||
    one.text?.toLowerCase().startsWith(plain));
  return begins.length === 1 ? begins[0].name : text;
}

// Event handlers.

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = fromForm();
  try {
    question.entity = await completed(question.entity, findEntities);
    question.relation = await completed(question.relation, findRelations(true));
  } catch (error) {
    refused(error);
    return;
  }
  go(question);
});
// The relations that fit an entity are needed when the relation is chosen.
$("entity").addEventListener("chosen", () => facts.show(nameIn($("entity"))));
$("relation").addEventListener("chosen", showStatistics);
$("statistics").addEventListener("toggle", showStatistics);
$("add").addEventListener("submit", async (event) => {
  event.preventDefault();
  const isAddition = event.submitter?.id === "add-fact";
  const [head, label, tail] = ["head", "label", "tail"].map((id) => nameIn($(id)));
  let fact;
  try {
    // A new entity may have the beginning of another's name.
    const find = isAddition ? exact : completed;
    fact = await Promise.all([find(head, findEntities), completed(label, findRelations(false)),
      find(tail, findEntities)]);
  } catch (error) {
    checking += 1;
    $("checked").replaceChildren(); // it belongs to another fact
    showError(error, $("add-problem"));
    return;
  }
  if (isAddition) {
    $("checked").replaceChildren();
    if (await facts.change([fact], "POST", $("add-problem"))) $("tail").value = "";
    return;
  }
  const target = `#${new URLSearchParams({ head: fact[0], label: fact[1], tail: fact[2] })}`;
  if (location.hash === target) checkFact(fact);
  else location.hash = target;
});
$("more").addEventListener("click", () => {
  focusAnswers = true; // the button may be hidden then
  go(larger(shown.question));
});
$("zoom-in").addEventListener("click", () => drawing.zoom(1.3));
$("zoom-out").addEventListener("click", () => drawing.zoom(1 / 1.3));
$("zoom-reset").addEventListener("click", () => drawing.reset());
$("expand").addEventListener("click", () => {
  drawing.expands = !drawing.expands;
  $("expand").setAttribute("aria-pressed", String(drawing.expands));
});
const drawn = () => `why ${$("why-title").textContent.slice(4, -1)}`;
$("save-svg").addEventListener("click", () => drawing.saveSvg(fileName(drawn(), "svg")));
$("save-png").addEventListener("click", () => drawing.savePng(fileName(drawn(), "png")));
$("drawing").addEventListener("keydown", (event) => drawing.regionKey(event));
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("token-form").hidden = true;
  start();
});
window.addEventListener("hashchange", route);

function count(state) {
  $("about").textContent = `${plural(state.entities, "entity", "entities")}, ` +
    `${plural(state.relations, "relation")}, ${plural(state.facts, "fact")}.`;
}

async function start() {
  $("problem").textContent = "";
  try {
    const found = await call("v1/relations");
    ({ relations, counts } = found);
    const state = await call("v1/readyz");
    useLabels(state.labels, found.labels);
    facts.readOnly = state.read_only;
    $("add-fact").hidden = state.read_only;
    count(state);
    facts.showChanges();
    route();
  } catch (error) {
    showError(error);
  }
}
start();
