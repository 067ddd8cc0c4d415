// Elements, numbers and files.

export const $ = (id) => document.getElementById(id);

export const DIGITS = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
export const SCORE = new Intl.NumberFormat(
  "en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

const TIME = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

// A time of the service, in the time zone of the user.
export function moment(text) {
  return element("time", TIME.format(new Date(text)), { datetime: text });
}

export function percent(probability) {
  return `${(100 * probability).toFixed(probability < 0.1 ? 1 : 0)}%`;
}

export function plural(count, one, many = `${one}s`) {
  return `${DIGITS.format(count)} ${count === 1 ? one : many}`;
}

// Characters that are not seen or that turn others, except the variants of emoji, and joiners in
// scripts that need them.
const HIDDEN = /(?![\uFE00-\uFE0F]|(?<=\P{ASCII})[\u200C\u200D](?=\P{ASCII}))[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{DI}]/gu;

// A text in which hidden characters are codes, as \u202e: with them, a name can look like another.
export function visible(text) {
  return text.replace(HIDDEN, (one) => {
    const code = one.codePointAt(0).toString(16).padStart(4, "0");
    return code.length > 4 ? `\\u{${code}}` : `\\u${code}`;
  });
}

// A field shows the visible form of a name, and stands for the name itself until it is edited.
export function setName(field, name) {
  field.dataset.name = name;
  field.value = visible(name);
}

export function nameIn(field) {
  const { name } = field.dataset;
  return name !== undefined && visible(name) === field.value ? name : field.value;
}

export function element(tag, content, attributes = {}) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...[content].flat());
  return made;
}

const LONG = 60; // characters

// A text, isolated from that around it: it may be written from right to left. A long one is cut.
export function isolated(text, title = "") {
  const shown = visible(text);
  const made = element("bdi", shown);
  if (shown.length > LONG) made.className = "long";
  if (title || shown.length > LONG) made.title = visible(title || text);
  return made;
}

export function button(content, onclick, attributes = {}) {
  return element("button", content, { type: "button", class: "small", onclick, ...attributes });
}

// Offer a text or a blob as a file.
export function save(content, file, type = "text/plain") {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = element("a", "", { href: URL.createObjectURL(blob), download: file });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Rows as CSV. A cell that a spreadsheet would take for a formula is marked as text.
export function csv(rows) {
  const cell = (value) => {
    let text = String(value ?? "");
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

// A file name from a text.
export function fileName(text, ending) {
  return `${text.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80)}.${ending}`;
}
