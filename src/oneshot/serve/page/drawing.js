// Inserts drawings, which the service sends as SVG, and makes their entities clickable.

export function draw(container, text, walk) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml");
  if (parsed.querySelector("parsererror")) {
    container.textContent = "The drawing cannot be shown.";
    return;
  }
  const svg = document.importNode(parsed.documentElement, true);
  svg.addEventListener("click", (event) => {
    const entity = event.target.closest("[data-entity]");
    if (entity) walk(entity.dataset.entity);
  });
  svg.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    const entity = event.target.closest("[data-entity]");
    if (entity) {
      event.preventDefault();
      walk(entity.dataset.entity);
    }
  });
  container.replaceChildren(svg);
  // On a narrow screen, start at the left, where the query entity is.
  container.scrollLeft = 0;
}
