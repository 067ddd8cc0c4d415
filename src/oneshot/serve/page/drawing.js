// Drawings, which the service sends as SVG: zoom, pan, walk on, expand, and save as a file.

import { save, visible } from "./dom.js";
import { call, learn, textOf } from "./service.js";

const SVG = "http://www.w3.org/2000/svg";
const STEP = 1.3; // of the zoom
const MOST = 12; // times the original size
const DRAG = 4; // pixels before a press becomes a drag
const NEIGHBOURS = 8; // that an expanded entity gets
const RADIUS = 95; // around it

function parsed(text) {
  const found = new DOMParser().parseFromString(text, "image/svg+xml");
  return found.querySelector("parsererror") ? null : document.importNode(found.documentElement, true);
}

export function draw(container, text) {
  const svg = parsed(text);
  if (!svg) {
    container.textContent = "The drawing cannot be shown.";
    return null;
  }
  for (const one of svg.querySelectorAll("[data-entity][aria-label]")) {
    one.setAttribute("aria-label", textOf(one.dataset.entity));
  }
  svg.setAttribute("aria-label", visible(svg.getAttribute("aria-label") || ""));
  for (const one of svg.querySelectorAll("text, title")) { // some titles have several lines
    const given = one.textContent;
    const text = given.split("\n").map(visible).join("\n");
    if (text === given) continue;
    one.textContent = text;
    const size = Number(one.getAttribute("font-size")); // smaller, in the place of the given text
    if (size) one.setAttribute("font-size", Math.max(8, size * given.length / text.length));
  }
  container.replaceChildren(svg);
  // On a narrow screen, start at the left, where the query entity is.
  container.scrollLeft = 0;
  return svg;
}

// A drawing that can be moved and enlarged, and whose entities lead on.
export class Drawing {
  constructor(container, { walk, failed }) {
    this.container = container;
    this.walk = walk;
    this.failed = failed;
    this.expands = false; // whether selecting an entity expands it
    this.svg = null;
    this.pointers = new Map(); // the mouse or fingers that press the drawing, where they are
  }

  show(text) {
    this.pointers.clear();
    this.svg = draw(this.container, text);
    if (!this.svg) return;
    const box = this.svg.viewBox.baseVal;
    this.whole = { x: box.x, y: box.y, width: box.width, height: box.height };
    this.view = { ...this.whole };
    this.svg.addEventListener("click", (event) => this.select(event));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? STEP : 1 / STEP, this.at(event));
    }, { passive: false });
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) {
      this.svg.addEventListener(end, (event) => this.release(event));
    }
    this.look();
  }

  get isZoomed() {
    return this.view.width < this.whole.width - 1;
  }

  // The point of the drawing under the pointer.
  at(event) {
    const box = this.svg.getBoundingClientRect();
    return {
      x: this.view.x + (event.clientX - box.left) / box.width * this.view.width,
      y: this.view.y + (event.clientY - box.top) / box.height * this.view.height,
    };
  }

  zoom(factor, centre) {
    if (!this.svg) return;
    const { view, whole } = this;
    const width = Math.min(Math.max(view.width / factor, whole.width / MOST), whole.width);
    const share = width / view.width;
    const { x, y } = centre || { x: view.x + view.width / 2, y: view.y + view.height / 2 };
    view.x = x - (x - view.x) * share;
    view.y = y - (y - view.y) * share;
    view.width = width;
    view.height *= share;
    this.look();
  }

  pan(x, y) {
    if (!this.svg) return;
    this.view.x += x;
    this.view.y += y;
    this.look();
  }

  reset() {
    if (!this.svg) return;
    this.view = { ...this.whole };
    this.look();
  }

  // Show the view, which stays inside the drawing.
  look() {
    const { view, whole } = this;
    const within = (value, low, high) => Math.min(Math.max(value, low), high);
    view.x = within(view.x, whole.x, whole.x + whole.width - view.width);
    view.y = within(view.y, whole.y, whole.y + whole.height - view.height);
    this.svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
    this.svg.classList.toggle("zoomed", this.isZoomed);
  }

  press(event) {
    if (event.button || !this.isZoomed) return;
    this.pointers.set(event.pointerId, place(event));
  }

  // One pointer moves the drawing; with two fingers, the distance between them zooms it.
  drag(event) {
    const from = this.pointers.get(event.pointerId);
    if (!from || (distance(from, event) < DRAG && !this.dragged)) return;
    this.dragged = true;
    this.svg.setPointerCapture(event.pointerId);
    this.pointers.delete(event.pointerId);
    const [other] = this.pointers.values();
    if (other) {
      this.zoom(distance(event, other) / Math.max(distance(from, other), 1), this.at(other));
    } else {
      const [start, to] = [this.at(from), this.at(event)];
      this.pan(start.x - to.x, start.y - to.y);
    }
    this.pointers.set(event.pointerId, place(event));
  }

  release(event) {
    this.pointers.delete(event.pointerId);
    // The click that follows a drag selects nothing.
    if (!this.pointers.size) setTimeout(() => { this.dragged = false; });
  }

  select(event) {
    const found = event.target.closest("[data-entity]");
    if (!found || this.dragged) return;
    if (this.expands) this.expand(found.dataset.entity);
    else this.walk(found.dataset.entity);
  }

  key(event) {
    const found = event.target.closest("[data-entity]");
    if (found && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      this.select(event);
    } else if (found && event.key === "e" && !event.ctrlKey && !event.metaKey) {
      this.expand(found.dataset.entity);
    }
  }

  // Keys of the region around the drawing.
  regionKey(event) {
    const step = this.view ? this.view.width / 12 : 0;
    const actions = {
      "+": () => this.zoom(STEP),
      "-": () => this.zoom(1 / STEP),
      0: () => this.reset(),
      ArrowLeft: () => this.pan(-step, 0),
      ArrowRight: () => this.pan(step, 0),
      ArrowUp: () => this.pan(0, -step),
      ArrowDown: () => this.pan(0, step),
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey || !this.svg) return;
    if (event.key.startsWith("Arrow") && !this.isZoomed) return; // the region scrolls
    event.preventDefault();
    action();
  }

  centre(entity) {
    const shape = [...this.svg.querySelectorAll("[role=button][data-entity]")]
      .find((one) => one.dataset.entity === entity);
    const box = shape.getBBox();
    return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  }

  // Add neighbours of an entity that are not in the drawing yet.
  async expand(entity) {
    const { svg } = this;
    let facts;
    try {
      facts = (await call(`v1/entities/${encodeURIComponent(entity)}?limit=200`)).facts;
      await learn(facts.flatMap(([head, , tail]) => [head, tail]));
    } catch (error) {
      this.failed(error);
      return;
    }
    if (svg !== this.svg) return; // another one is shown by now
    const drawn = new Set([...svg.querySelectorAll("[data-entity]")].map((g) => g.dataset.entity));
    const added = new Map();
    for (const [head, relation, tail] of facts) {
      const other = head === entity ? tail : head;
      if (drawn.has(other) || added.size >= NEIGHBOURS) continue;
      added.set(other, `${textOf(head)} —${textOf(relation)}→ ${textOf(tail)}`);
      drawn.add(other);
    }
    const centre = this.centre(entity);
    for (const [other, fact] of added) {
      const place = this.freePlace(centre);
      svg.prepend(shape("g", {}, [
        shape("title", {}, fact),
        shape("path", { class: "line", d: `M${centre.x},${centre.y} L${place.x},${place.y}`,
          fill: "none", stroke: "#9aa4af", "stroke-width": 1.5 }),
      ]));
      svg.append(shape("g", { class: "entity expanded", "data-entity": other, role: "button",
        tabindex: 0, "aria-label": textOf(other) }, [
        shape("title", {}, fact),
        shape("circle", { cx: place.x, cy: place.y, r: 5, fill: "#d5dae0", stroke: "#9aa4af",
          "stroke-width": 2 }),
        shape("text", { x: place.x, y: place.y + 17, "font-size": 10.5, fill: "#57606a",
          "text-anchor": "middle" }, cut(textOf(other), 22)),
      ]));
    }
    this.grow();
    return added.size;
  }

  // The place around a centre that is farthest from all entities.
  freePlace(centre) {
    const others = [...this.svg.querySelectorAll("[role=button][data-entity]")].map((one) => {
      const box = one.getBBox();
      return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    });
    let best = null;
    for (let ring = 1; ring <= 2; ring += 1) {
      for (let number = 0; number < 24; number += 1) {
        const angle = (number / 24) * 2 * Math.PI + 0.2;
        const x = centre.x + ring * RADIUS * Math.cos(angle);
        const y = centre.y + ring * 0.75 * RADIUS * Math.sin(angle);
        // Names are wide: neighbours in a row need more room.
        const room = Math.min(...others.map((o) => Math.hypot((o.x - x) / 2, o.y - y)));
        const worth = Math.min(room, 45) - 8 * ring;
        if (!best || worth > best.worth) best = { x, y, worth };
      }
    }
    return best;
  }

  // Enlarge the whole drawing by what was added at its edges.
  grow() {
    const { whole } = this;
    const box = this.svg.getBBox();
    const left = Math.min(whole.x, box.x - 10);
    const top = Math.min(whole.y, box.y - 10);
    const width = Math.max(whole.x + whole.width, box.x + box.width + 10) - left;
    const height = Math.max(whole.y + whole.height, box.y + box.height + 10) - top;
    const wasWhole = !this.isZoomed;
    this.whole = { x: left, y: top, width, height };
    if (wasWhole) this.view = { ...this.whole };
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", height);
    this.look();
  }

  // The whole drawing as a document of its own, on white.
  document() {
    const copy = this.svg.cloneNode(true);
    const { x, y, width, height } = this.whole;
    copy.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
    copy.setAttribute("xmlns", SVG);
    copy.removeAttribute("class");
    copy.prepend(shape("rect", { x, y, width, height, fill: "#ffffff" }));
    return new XMLSerializer().serializeToString(copy);
  }

  saveSvg(file) {
    if (this.svg) save(this.document(), file, "image/svg+xml");
  }

  async savePng(file) {
    if (!this.svg) return;
    const image = new Image();
    const loaded = new Promise((done, fail) => {
      image.onload = done;
      image.onerror = () => fail(new Error("The drawing cannot be saved as PNG; save it as SVG."));
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(this.document())}`;
    try {
      await loaded;
      const canvas = document.createElement("canvas");
      canvas.width = 2 * this.whole.width;
      canvas.height = 2 * this.whole.height;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(blob, file), "image/png");
    } catch (error) {
      this.failed(error);
    }
  }
}

function place({ clientX, clientY }) {
  return { clientX, clientY };
}

function distance(one, other) {
  return Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
}

function shape(tag, attributes, content = []) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...[content].flat());
  return made;
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
