// A text field with suggestions, following the ARIA combobox pattern with a listbox. A suggestion is
// a name, or a name with the text that is shown for it and a note.

import { isolated, nameIn, setName, visible } from "./dom.js";

let count = 0;

export function suggest(input, find, { delay = 120 } = {}) {
  const list = document.createElement("ul");
  list.id = `suggestions-${++count}`;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", `Suggestions for ${input.labels[0].textContent}`);
  list.hidden = true;
  input.after(list);
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-expanded", "false");
  input.setAttribute("aria-controls", list.id);

  let chosen = -1;
  let shown = null; // the name that the list is for
  let timer = 0;
  let asked = 0;

  const close = () => {
    asked += 1; // discard responses that are still pending
    clearTimeout(timer);
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    chosen = -1;
  };

  const take = (name) => {
    setName(input, name);
    close();
    input.dispatchEvent(new Event("chosen"));
  };

  const mark = (index) => {
    chosen = index;
    input.removeAttribute("aria-activedescendant");
    [...list.children].forEach((option, number) => {
      option.setAttribute("aria-selected", String(number === index));
      if (number === index) {
        input.setAttribute("aria-activedescendant", option.id);
        option.scrollIntoView({ block: "nearest" });
      }
    });
  };

  const show = (names) => {
    list.replaceChildren(...names.map((one, number) => {
      const { name, text = name, note = "" } = typeof one === "string" ? { name: one } : one;
      const option = document.createElement("li");
      option.id = `${list.id}-${number}`;
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      option.dir = "auto";
      option.dataset.name = name;
      option.append(isolated(text));
      if (note) {
        const aside = document.createElement("small");
        aside.textContent = visible(note);
        option.append(" ", aside);
      }
      // Keep the focus in the field: losing it would close the list.
      option.addEventListener("pointerdown", (event) => event.preventDefault());
      option.addEventListener("click", () => take(name));
      return option;
    }));
    list.hidden = names.length === 0;
    input.setAttribute("aria-expanded", String(names.length > 0));
    chosen = -1;
  };

  const look = async () => {
    const request = ++asked;
    try {
      const text = nameIn(input);
      const names = await find(text);
      if (request !== asked || document.activeElement !== input) return;
      show(names);
      shown = text;
    } catch {
      close();
    }
  };

  input.addEventListener("input", () => {
    mark(-1); // the marked option belongs to the previous text
    clearTimeout(timer);
    timer = setTimeout(look, delay);
  });
  input.addEventListener("focus", () => { if (!input.value) look(); });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", async (event) => {
    if (event.key === "Escape") {
      close();
    } else if (event.key === "Enter" && !list.hidden && chosen >= 0) {
      event.preventDefault();
      take(list.children[chosen].dataset.name);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden || shown !== nameIn(input)) {
        clearTimeout(timer);
        await look();
      }
      const options = list.children.length;
      if (list.hidden || !options) return;
      const from = chosen < 0 && event.key === "ArrowUp" ? 0 : chosen;
      mark((from + (event.key === "ArrowDown" ? 1 : -1) + options) % options);
    }
  });
}
