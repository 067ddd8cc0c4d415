// Facts about an entity, changes to facts, and the check of a fact.

import { $, button, DIGITS, element, moment, percent, plural, SCORE, visible } from "./dom.js";
import { call, learn, name } from "./service.js";

const PAGE = 50; // facts
const CHANGES = 10; // per page

export function factInWords([head, relation, tail], link = name) {
  return [link(head), " —", name(relation), "→ ", link(tail)];
}

export function pathInWords(path) {
  const words = [name(path.steps[0].source)];
  for (const step of path.steps) words.push(" —", name(step.relation), "→ ", name(step.target));
  const more = path.parallel ? `, ${path.parallel} more by parallel facts` : "";
  const note = path.known ? ", the known fact itself" : "";
  const figures = `weight ${SCORE.format(path.weight)}, score without it ` +
    `${SCORE.format(path.score_without)}${more}${note}`;
  return element("li", [...words, " ", element("small", figures)]);
}

export function namesOfPaths(paths) {
  return paths.flatMap((path) => path.steps.flatMap((step) => [step.source, step.target]));
}

// Buttons for the pages of a list; `go` is called with the first row of a page.
function pages(container, { offset, size, total, what, go }) {
  const last = Math.min(offset + size, total);
  const focused = container.contains(document.activeElement)
    ? document.activeElement.getAttribute("aria-label") : null;
  container.hidden = total <= size;
  container.replaceChildren(
    button("Previous", () => go(Math.max(offset - size, 0)),
      { "aria-label": `Previous ${what}`, ...(offset ? {} : { disabled: "" }) }),
    button("Next", () => go(offset + size),
      { "aria-label": `Next ${what}`, ...(last < total ? {} : { disabled: "" }) }),
    element("span", `${DIGITS.format(offset + 1)}–${DIGITS.format(last)} of ` +
      `${DIGITS.format(total)}`, { class: "hint" }),
  );
  if (focused) { // the same button, or the other one at the end of the list
    const enabled = [...container.querySelectorAll("button:enabled")];
    (enabled.find((one) => one.getAttribute("aria-label") === focused) || enabled[0])?.focus();
  }
}

// The entities of facts that the graph does not have: they may be misspelled.
async function unknownOf(facts) {
  const names = [...new Set(facts.flatMap(([head, , tail]) => [head, tail]))];
  const known = await Promise.all(names.map(async (one) => {
    const found = await call(`v1/entities?${new URLSearchParams({ search: one, limit: "10" })}`);
    return found.entities.includes(one);
  }));
  return names.filter((_, number) => !known[number]);
}

// Replace the lines of a list. If the focus was in it, it moves to the note of the change.
function replaceLines(list, lines) {
  const hadFocus = list.contains(document.activeElement);
  list.replaceChildren(...lines);
  if (hadFocus) ($("added").querySelector("button") || list.querySelector("button"))?.focus();
}

export class Facts {
  // `walk`: called with an entity; `changed`: after a change; `failed`: with an error.
  constructor({ walk, changed, failed }) {
    Object.assign(this, { walk, changed, failed });
    this.readOnly = false;
    this.entity = null;
    this.relations = []; // of the entity
    this.reading = 0;
  }

  // Returns whether the entity is known.
  async show(entity, offset = 0) {
    const number = ++this.reading;
    const again = this.entity === entity;
    this.entity = entity;
    if (!again) this.relations = [];
    try {
      const path = `v1/entities/${encodeURIComponent(entity)}?limit=${PAGE}&offset=${offset}`;
      const around = await call(path);
      await learn([entity, ...around.facts.flatMap(([head, , tail]) => [head, tail])]);
      if (number !== this.reading) return true;
      this.relations = around.relations;
      $("around").hidden = false;
      $("facts-title").replaceChildren(
        "Facts about ", name(entity), ` (${DIGITS.format(around.total)})`);
      replaceLines($("facts"), around.facts.map((fact) => this.line(fact, entity)));
      pages($("facts-pages"), {
        offset, size: PAGE, total: around.total, what: "facts",
        go: async (start) => {
          await this.show(entity, start);
          $("facts").scrollTop = 0;
        },
      });
      return true;
    } catch (error) {
      if (number !== this.reading) return false;
      $("around").hidden = true;
      if (error.status !== 404) this.failed(error);
      return false;
    }
  }

  line(fact, entity) {
    const [head, relation, tail] = fact;
    const link = (which) => (which === entity ? name(which) : element("button", name(which), {
      type: "button", class: "link", onclick: () => this.walk(which),
    }));
    const words = element("span", factInWords(fact, link));
    const remove = button("×", () => this.change([fact], "DELETE"),
      { "aria-label": visible(`Remove ${head}, ${relation}, ${tail}`) });
    return element("li", this.readOnly ? [words] : [words, remove]);
  }

  // `problem`: the place of an error, by default the note of the change.
  async change(facts, method, problem = $("added")) {
    const hadFocus = $("added").contains(document.activeElement);
    const origin = document.activeElement;
    $("add-problem").textContent = "";
    $("added").replaceChildren();
    try {
      const unknown = method === "POST" ? await unknownOf(facts) : [];
      const done = await call("v1/facts", { facts }, { method });
      await learn(facts.flatMap(([head, , tail]) => [head, tail]));
      const outcome = method === "DELETE" ? "Removed" : done.added ? "Added" : "Already known";
      const words = facts[0].flatMap((part, at) => (at ? [", ", name(part)] : [name(part)]));
      $("added").replaceChildren(`${outcome}: `, ...words, ".");
      if (done.added && unknown.length) {
        const which = unknown.flatMap((one, at) => (at ? [", ", name(one)] : [name(one)]));
        $("added").append(unknown.length > 1 ? " New entities: " : " New entity: ", ...which, ".");
      }
      if (done.added || done.removed) {
        const opposite = method === "DELETE" ? "POST" : "DELETE";
        $("added").append(" ", button("Undo", () => this.change(facts, opposite)));
      }
      // It lies over what is at the bottom of the window.
      $("added").append(" ", button("×", () => {
        $("added").replaceChildren();
        (origin.isConnected ? origin : $("tail")).focus();
      }, { "aria-label": "Close this note" }));
    } catch (error) {
      this.failed(error, problem);
      return false;
    } finally {
      const isLost = hadFocus && document.activeElement === document.body;
      if (isLost) ($("added").querySelector("button") || $("added")).focus();
    }
    this.showChanges();
    await this.changed(facts, method);
    return true;
  }

  async showChanges(offset = 0) {
    try {
      const found = await call(`v1/changes?limit=${CHANGES}&offset=${offset}`);
      await learn(found.changes.flatMap(({ fact: [head, , tail] }) => [head, tail]));
      $("changes-card").hidden = found.total === 0;
      $("changes-title").textContent = `Changes (${plural(found.total, "fact")})`;
      replaceLines($("changes"), found.changes.map((one) => this.changeLine(one)));
      pages($("changes-pages"), {
        offset, size: CHANGES, total: found.total, what: "changes",
        go: (start) => this.showChanges(start),
      });
    } catch (error) {
      $("changes-card").hidden = true;
      if (error.status !== 401) this.failed(error);
    }
  }

  changeLine({ fact, change, in_base: inBase, version, time }) {
    const isUndone = (change === "added") === inBase;
    const note = [change, ...(time ? [" ", moment(time)] : []),
      `, version ${version}${isUndone ? ", as in the original graph" : ""}`];
    const words = element("span", [element("small", note), " ", ...factInWords(fact)]);
    if (this.readOnly || isUndone) return element("li", [words]);
    return element("li", [words, button(
      "Undo", () => this.change([fact], change === "added" ? "DELETE" : "POST"),
      { "aria-label": visible(`Undo: ${change} ${fact.join(", ")}`) })]);
  }
}

// The judgement of a fact, as elements.
export async function check([head, relation, tail]) {
  const found = await call("v1/check", { head, relation, tail });
  await learn([...found.fact, ...found.other_tails, ...namesOfPaths(found.paths)]);
  const rows = [
    ["In the graph", found.known ? "yes" : "no"],
    ["Probability by all other facts", found.probability === null
      ? "unknown (not calibrated)" : percent(found.probability)],
    ["Rank", `${DIGITS.format(found.rank)} of ${DIGITS.format(found.candidates)}`],
  ];
  // The service still sends paths for such a fact, which has the last rank.
  const isAlone = found.fact[0] === found.fact[2] && found.message &&
    found.rank === found.candidates;
  const message = isAlone ? ["An entity counts as related to itself only if another fact of the " +
    "graph relates it to itself; ", name(found.fact[0]), " has no such fact."] : [found.message];
  const others = found.other_tails.flatMap((one, at) => (at ? [", ", name(one)] : [name(one)]));
  return [
    element("p", [...factInWords(found.fact)], { class: "fact" }),
    element("dl", rows.map(([key, value]) => element("div", [
      element("dt", key), element("dd", value)]))),
    ...(others.length ? [element("p", ["Other tails in the graph: ", ...others, "."])] : []),
    ...(found.message ? [element("p", message)] : []),
    ...(found.paths.length && !isAlone
      ? [element("ol", found.paths.map(pathInWords), { class: "paths" })] : []),
  ];
}
