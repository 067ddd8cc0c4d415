// Drawings come from the server as SVG; here they are put into the page and made to lead on.

export function draw(place, text, walk) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml");
  if (parsed.querySelector("parsererror")) {
    place.textContent = "The drawing cannot be shown.";
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
  place.replaceChildren(svg);
  // On a narrow screen the question, on the left, is what comes first.
  place.scrollLeft = 0;
}
