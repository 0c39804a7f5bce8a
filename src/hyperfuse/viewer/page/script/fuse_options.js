// The options of a fusion: inputs built from the descriptions that the server sends.
import { field, make, option } from "./dom.js";
import { files } from "./fuse_choice.js";

let fields = [];
const values = {};

export function setFields(described) {
  fields = described;
  for (const one of fields) values[one.name] ??= one.default;
}

export const optionValues = () => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null));

// One group of options for each panel of the command line's help.
export function optionGroups() {
  const names = [...new Set(fields.map((one) => one.group))];
  const group = (name) => make("details", {}, make("summary", {}, name), fields.filter((one) => one.group === name).map(control));
  return make("div", { className: "steps", id: "fuse-options" }, names.map(group));
}

function control(one) {
  const id = `option-${one.name}`;
  const keep = (read) => ({ change: (event) => (values[one.name] = read(event.target)) });
  const note = make("p", { className: "note", id: `${id}-help` }, one.help);
  const common = { id, "aria-describedby": note.id };
  if (one.input === "checkbox") {
    const box = make("input", { ...common, type: "checkbox", checked: values[one.name], on: keep((input) => input.checked) });
    return make("div", { className: "option" }, make("label", { className: "check" }, box, one.label), note);
  }
  return make("div", { className: "option" }, field(one.label, entry(one, common, keep)), note);
}

function entry(one, common, keep) {
  const value = values[one.name];
  if (one.input === "select" || one.input === "file") {
    const choices = one.input === "file" ? files.map((file) => file.path) : one.choices;
    const offered = one.default === null ? [null, ...choices] : choices;
    const on = keep((select) => offered[select.selectedIndex]);
    return make("select", { ...common, on }, offered.map((choice) => option(choice ?? "", choice ?? "–", value ?? "")));
  }
  const read = one.input === "number" ? Number : String;
  const on = keep((input) => (input.value.trim() ? read(input.value.trim()) : null));
  return make("input", { ...common, type: one.input, step: "any", placeholder: one.placeholder, value: value ?? "", on });
}
