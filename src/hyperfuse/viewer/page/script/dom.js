// Small ways to make elements. Text always goes in as text, never as markup: file names come from anywhere.

export const find = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && !name.startsWith("aria") && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const replace = (element, ...children) => element.replaceChildren(...children.flat().filter(Boolean));

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
  // A true minus, at which no line is broken.
  return text.replaceAll("-", "−");
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) {
    count /= 1000;
    power += 1;
  }
  return `${count < 10 && power ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}

export function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export const isTyping = (target) =>
  target instanceof HTMLElement &&
  target.matches("input:not([type=range]):not([type=checkbox]):not([type=radio]), select, textarea");

// A control with its title above it; clicking the title reaches the control.
export const field = (title, control) => make("label", { className: "field" }, make("span", {}, title), control);

export const button = (text, run, properties = {}) => make("button", { type: "button", ...properties, on: { click: run } }, text);

export const option = (value, text, chosen) => make("option", { value, selected: value === chosen }, text);

// Two columns: what it is, and what it says.
export function facts(rows) {
  const line = ([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, String(value)));
  return make("table", { className: "meta" }, make("tbody", {}, rows.map(line)));
}
