// The table of answers: filter, comparison with an earlier version of the facts, and export.

import { $, csv, DIGITS, element, fileName, percent, plural, save, SCORE } from "./dom.js";
import { curl, labelOf, name } from "./service.js";

export const FIRST = 10; // answers
const MOST = 1000;
const REST = 600; // milliseconds that the focus stays on an answer before it is explained

let shown = null; // { question, body, result }

export function body(question) {
  const { entity, relation, inverse } = question;
  return {
    questions: [{ entity, relation, inverse }],
    top: question.top || FIRST,
    exclude_known: question.excludeKnown,
    ...(question.minProbability ? { min_probability: question.minProbability / 100 } : {}),
    ...(question.typeRelation && question.typeEntity
      ? { types: [[question.typeRelation, question.typeEntity]] } : {}),
  };
}

// `before`: an earlier result of the same question, or null; `open`: called with an answer that was
// selected, and with true if only the focus rests on it.
export function showAnswers(question, result, before, open) {
  shown = { question, body: body(question), result };
  const { answers, subgraph, milliseconds, query } = result;
  $("answers-card").hidden = false;
  $("answers-title").replaceChildren("(", name(query.entity), ", ", name(query.relation), ", ?)");
  const ranks = new Map((before?.answers || []).map((one, number) => [one.entity, number + 1]));
  const classes = $("answers").classList;
  classes.toggle("compares", Boolean(before));
  // Columns without content: a run may have no probabilities.
  classes.toggle("unlikely", !answers.some((one) => !one.known && one.probability !== null));
  classes.toggle("unknown", !answers.some((one) => one.known));
  $("answers").tBodies[0].replaceChildren(...answers.map((answer, number) => {
    const { entity, score, probability, known } = answer;
    // A fact of the graph holds, whatever the predictor would expect without it.
    const chance = known || probability === null ? "" : [
      element("meter", "", { value: probability, "aria-hidden": "true" }), ` ${percent(probability)}`,
    ];
    let resting;
    const link = element("button", name(entity), {
      type: "button", class: "link",
      onclick: () => open(entity, false),
      // Of the keyboard alone: a click has its own event.
      onfocus: () => {
        if (!link.matches(":focus-visible")) return;
        resting = setTimeout(() => link.isConnected && open(entity, true), REST);
      },
      onblur: () => clearTimeout(resting),
    });
    const mark = known ? element("span", "known", { class: "known" }) : "";
    return element("tr", [
      element("td", String(number + 1)), element("td", link),
      element("td", SCORE.format(score)), element("td", chance), element("td", mark),
      element("td", before ? change(ranks.get(entity), number + 1) : "", { class: "before" }),
    ], { "data-answer": entity });
  }));
  $("compared").replaceChildren(...compared(result, before));
  $("find").value = "";
  $("find-field").hidden = answers.length <= FIRST;
  const wanted = question.top || FIRST;
  $("more").hidden = answers.length < wanted || wanted >= MOST;
  $("curl").hidden = true;
  $("show-curl").setAttribute("aria-expanded", "false");
  showTimes(milliseconds);
  const size = `from ${plural(subgraph.entities, "entity", "entities")} and ` +
    `${plural(subgraph.edges, "edge")}`;
  return result.message ? `No answer: ${result.message}` : `${plural(answers.length, "answer")} ${size}.`;
}

function change(old, rank) {
  if (!old) return "new";
  if (old === rank) return "same";
  return `#${old} ${old > rank ? "▲" : "▼"}`;
}

function compared(result, before) {
  if (!before) return [];
  const now = new Set(result.answers.map((one) => one.entity));
  const gone = before.answers.filter((one) => !now.has(one.entity)).map((one) => one.entity);
  const words = [`Compared with version ${before.version} of the facts; this is version ` +
    `${result.version}.`];
  if (gone.length) {
    words.push(" No longer among the answers: ",
      ...gone.flatMap((one, number) => (number ? [", ", name(one)] : [name(one)])), ".");
  }
  return words;
}

export function showTimes(milliseconds) {
  const steps = Object.entries(milliseconds).filter(([step]) => step !== "batch");
  for (const [step, value] of steps) {
    [...$("times").children].filter((row) => row.firstChild.textContent === step)
      .forEach((row) => row.remove());
    $("times").append(element("div", [
      element("dt", step), element("dd", `${DIGITS.format(value)} ms`),
    ]));
  }
}

export function forgetTimes() { $("times").replaceChildren(); }

export function larger(question) {
  return { ...question, top: Math.min((question.top || FIRST) * 3, MOST) };
}

function file(ending) {
  const { entity, relation } = shown.result.query;
  return fileName(`${labelOf(entity)} ${labelOf(relation)}`, ending);
}

$("find").addEventListener("input", () => {
  const wanted = $("find").value.toLowerCase();
  for (const row of $("answers").tBodies[0].rows) {
    row.hidden = !row.cells[1].textContent.toLowerCase().includes(wanted) &&
      !row.dataset.answer.toLowerCase().includes(wanted);
  }
});
$("save-csv").addEventListener("click", () => {
  const { query, answers } = shown.result;
  const head = ["entity", "relation", "rank", "answer", "score", "probability", "known"];
  const rows = answers.map((one, number) => [
    query.entity, query.relation, number + 1, one.entity, one.score, one.probability, one.known]);
  save(csv([head, ...rows]), file("csv"), "text/csv");
});
$("save-json").addEventListener("click", () => {
  save(`${JSON.stringify(shown.result, null, 2)}\n`, file("json"), "application/json");
});
$("show-curl").addEventListener("click", async () => {
  const hide = !$("curl").hidden;
  $("curl").hidden = hide;
  $("show-curl").setAttribute("aria-expanded", String(!hide));
  $("copied").textContent = "";
  if (hide) return;
  $("command").value = curl("v1/predict", shown.body);
  $("command").select();
  try {
    await navigator.clipboard.writeText($("command").value);
    $("copied").textContent = "Copied.";
  } catch {
    $("copied").textContent = "Copy the selected text."; // pages without TLS may not copy
  }
});
