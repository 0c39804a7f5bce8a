// Fuse from the page: two images, what is in them, how they were observed, a method, and then watch.
import { get, post } from "./api.js";
import { button, bytes, field, find, make, number, option, replace } from "./dom.js";
import { openScene } from "./files.js";
import { chosen, files, renderChoice, startChoice } from "./fuse_choice.js";
import { renderEstimation } from "./fuse_estimation.js";
import { watch } from "./jobs.js";
import { complain, errorBox, say } from "./messages.js";
import { on, state, tell } from "./store.js";

const WEIGHTS = "weights: ";
const form = {
  method: "",
  output: "",
  estimate: true,
  consistency: false,
  trust: "msi",
  overwrite: false,
  overviews: true,
  ram_gb: null,
};
const parts = {};
let methods = [];
let networks = [];
let preferred = "";
let ready = false;
let running = false;

const canStart = () => chosen.hsi && chosen.msi && !running;

async function render() {
  ready = true;
  for (const name of ["choice", "estimation", "options", "work"]) parts[name] = make("div", { className: "group" });
  replace(find("panel-fuse"), Object.values(parts));
  try {
    const [offered] = await Promise.all([get("api/methods"), renderChoice(parts.choice)]);
    ({ methods, networks } = offered);
    preferred = offered.chosen;
    form.method ||= preferred;
    renderEstimation(parts.estimation);
    renderOptions();
  } catch (error) {
    replace(parts.work, errorBox(error));
    ready = false;
  }
  for (const job of state.scene.jobs ?? []) if (job.kind === "fuse") follow(job);
}

function freeName() {
  const taken = new Set(files.map((file) => file.path));
  for (let count = 1; ; count += 1) {
    const name = count === 1 ? "fused.tif" : `fused_${count}.tif`;
    if (!taken.has(name)) return name;
  }
}

const keep = (name, read) => (event) => (form[name] = read(event.target));

function check(name, text) {
  const on = { change: keep(name, (input) => input.checked) };
  return make("label", { className: "check" }, make("input", { type: "checkbox", checked: form[name], on }), text);
}

function renderOptions() {
  form.output ||= freeName();
  const output = { type: "text", id: "fuse-output", value: form.output, spellcheck: false };
  const start = { className: "primary wide", id: "fuse-start", disabled: !canStart() };
  replace(
    parts.options,
    make("h3", {}, "3  Fuse"),
    methodChoice(),
    field("Write to", make("input", { ...output, on: { input: keep("output", (input) => input.value.trim()) } })),
    moreChoices(),
    button("Fuse", () => fuse(wanted()), start),
  );
}

function methodChoice() {
  const line = make("p", { className: "note" });
  const describe = () => {
    const one = methods.find((method) => method.name === form.method);
    line.textContent = one ? [one.line, one.reference && `(${one.reference})`].filter(Boolean).join(" ") : "a trained network";
  };
  const select = make(
    "select",
    { className: "wide", id: "fuse-method" },
    methods.map((one) => option(one.name, one.name, form.method)),
    networks.map((name) => option(WEIGHTS + name, WEIGHTS + name, form.method)),
  );
  select.addEventListener("change", () => {
    form.method = select.value;
    describe();
  });
  describe();
  return make("div", { className: "steps" }, field("Method", select), line);
}

function moreChoices() {
  const memory = { type: "number", min: 0.5, step: 0.5, value: form.ram_gb ?? "", placeholder: "half of the machine's" };
  const georeferences = ["msi", "hsi"].map((name) => option(name, name.toUpperCase(), form.trust));
  return make(
    "details",
    {},
    make("summary", {}, "More choices"),
    check("estimate", "Estimate shift, blur, response and noise first"),
    check("consistency", "Make it agree once more with both images"),
    check("overwrite", "Replace the file if it exists"),
    check("overviews", "With overviews, so that it is quick to look at (GeoTIFF)"),
    field(
      "Memory at most, GB",
      make("input", { ...memory, on: { change: keep("ram_gb", (input) => Number(input.value) || null) } }),
    ),
    field("Whose georeference is right", make("select", { on: { change: keep("trust", (input) => input.value) } }, georeferences)),
  );
}

function wanted() {
  const { method, ...others } = form;
  const way = method.startsWith(WEIGHTS) ? { weights: method.slice(WEIGHTS.length) } : { method };
  // Only GeoTIFF holds overviews.
  return { ...chosen, ...others, ...way, overviews: form.overviews && /\.tiff?$/i.test(form.output) };
}

async function fuse(choices) {
  try {
    follow(await post("api/fuse", choices), choices);
  } catch (error) {
    replace(parts.work, errorBox(error));
  }
}

function follow(job, choices = null) {
  running = true;
  find("fuse-start").disabled = true;
  const box = watch(job, "Fusing", (end) => ended(end, choices));
  replace(parts.work, box);
  parts.work.scrollIntoView({ block: "nearest" });
}

async function ended(job, choices) {
  running = false;
  find("fuse-start").disabled = !canStart();
  if (job.state === "failed") return replace(parts.work, errorBox(job.error));
  if (job.state === "cancelled") return replace(parts.work, cancelled(choices));
  form.output = "";
  replace(parts.work, result(job, choices));
  if (find("panel-fuse").hidden) say(`${job.result.output} is fused`, "", 8);
  await renderChoice(parts.choice);
  renderOptions();
  tell("files", "fused");
  parts.work.scrollIntoView({ block: "nearest" });
}

function cancelled(choices) {
  const again = choices && button("Go on with it", () => fuse({ ...choices, resume: true }));
  const words = make("p", {}, "Cancelled. No image was written; finished tiles of a large one are kept.");
  return make("div", { className: "warn", id: "fuse-cancelled" }, words, again);
}

function result(job, choices) {
  const { output, method, bytes: size, downloads, hsi, msi } = job.result;
  const view = async () => {
    try {
      await openScene({ fused: output, hsi, msi });
      say(`Showing ${output}`);
    } catch (error) {
      replace(parts.work, errorBox(error));
    }
  };
  const link = (path) => ({ href: `api/download?path=${encodeURIComponent(path)}`, download: "", className: "download" });
  const words = (path) => (downloads.length > 1 ? `Download ${path}` : "Download");
  return [
    make("h3", {}, "Done"),
    make("p", {}, make("code", {}, output), ` by ${method}, ${bytes(size)}, in ${number(job.seconds, 2)} s`),
    ...job.notes.map((note) => make("p", { className: "warn" }, note)),
    make(
      "div",
      { className: "row" },
      button("View the result", view, { className: "primary", id: "fuse-view" }),
      downloads.map((path) => make("a", link(path), words(path))),
    ),
    method === preferred && choices && !choices.consistency ? sureness(choices) : null,
  ];
}

// How far off each value may be; of the method that knows.
function sureness(choices) {
  const box = make("div", {});
  const path = choices.output.replace(/(\.[^.]+)$/, "_uncertainty$1");
  const { output: fused, hsi, msi } = choices;
  const ended = (job) => {
    if (job.state !== "done") return replace(box, job.error ? errorBox(job.error) : start);
    const view = () => openScene({ fused, hsi, msi, uncertainty: path }).catch(complain);
    replace(box, make("code", {}, path), " ", button("View both", view, { id: "view-uncertainty" }));
    tell("files", "uncertainty");
  };
  const begin = async () => {
    try {
      const job = await post("api/uncertainty", { ...choices, uncertainty: path, resume: false });
      replace(box, watch(job, "Uncertainty", ended));
    } catch (error) {
      replace(box, errorBox(error));
    }
  };
  const start = button("How sure is it?", begin, { id: "find-uncertainty", title: `Writes ${path}` });
  replace(box, start);
  return box;
}

export function startFusing() {
  startChoice();
  on("tab", (name) => name === "fuse" && !ready && render());
  on("chosen", () => {
    renderEstimation(parts.estimation);
    renderOptions();
  });
}
