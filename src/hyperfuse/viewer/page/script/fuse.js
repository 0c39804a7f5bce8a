// Fuse from the page: two images, how they were observed, a method and its options, and then watch.
import { get, post } from "./api.js";
import { button, bytes, field, find, make, number, option, replace } from "./dom.js";
import { openScene } from "./files.js";
import { chosen, files, renderChoice, startChoice } from "./fuse_choice.js";
import { renderEstimation } from "./fuse_estimation.js";
import { optionGroups, optionValues, setFields } from "./fuse_options.js";
import { watch } from "./jobs.js";
import { errorBox, notify, showError } from "./messages.js";
import { emit, on, state } from "./store.js";

const WEIGHTS = "weights: ";
const form = { method: "", output: "" };
const parts = {};
let methods = [];
let networks = [];
let defaultMethod = "";
let ready = false;
let running = false;

const canStart = () => chosen.hsi && chosen.msi && !running;

async function render() {
  ready = true;
  for (const name of ["choice", "estimation", "options", "work"]) parts[name] = make("div", { className: "group" });
  replace(find("panel-fuse"), Object.values(parts));
  try {
    const [offered] = await Promise.all([get("api/methods"), renderChoice(parts.choice)]);
    ({ methods, networks, default: defaultMethod } = offered);
    form.method ||= defaultMethod;
    setFields(offered.fields);
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

function renderOptions() {
  form.output ||= freeName();
  const keep = { input: (event) => (form.output = event.target.value.trim()) };
  const output = { type: "text", id: "fuse-output", value: form.output, spellcheck: false, on: keep };
  const start = { className: "primary wide", id: "fuse-start", disabled: !canStart() };
  replace(
    parts.options,
    make("h3", {}, "3  Fuse"),
    methodChoice(),
    field("Write to", make("input", output)),
    optionGroups(),
    button("Fuse", () => fuse(currentRequest()), start),
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

function currentRequest() {
  const { method, output } = form;
  const way = method.startsWith(WEIGHTS) ? { weights: method.slice(WEIGHTS.length) } : { method };
  return { ...chosen, output, options: { ...optionValues(), ...way } };
}

async function fuse(request) {
  try {
    follow(await post("api/fuse", request), request);
  } catch (error) {
    replace(parts.work, errorBox(error));
  }
}

function follow(job, request = null) {
  running = true;
  find("fuse-start").disabled = true;
  replace(
    parts.work,
    watch(job, "Fusing", (end) => ended(end, request)),
  );
  parts.work.scrollIntoView({ block: "nearest" });
}

async function ended(job, request) {
  running = false;
  find("fuse-start").disabled = !canStart();
  if (job.state === "failed") return replace(parts.work, errorBox(job.error));
  if (job.state === "cancelled") return replace(parts.work, cancelled(request));
  form.output = "";
  replace(parts.work, result(job, request));
  if (find("panel-fuse").hidden) notify(`${job.result.output} is fused`, "", 8);
  await renderChoice(parts.choice);
  renderOptions();
  emit("files", "fused");
  parts.work.scrollIntoView({ block: "nearest" });
}

function cancelled(request) {
  const again = request && button("Resume", () => fuse({ ...request, options: { ...request.options, resume: true } }));
  const text = make("p", {}, "Cancelled. No image was written; finished tiles of a large one are kept.");
  return make("div", { className: "warn", id: "fuse-cancelled" }, text, again);
}

function result(job, request) {
  const { output, method, bytes: size, downloads, hsi, msi, change_mask } = job.result;
  const view = async () => {
    try {
      await openScene({ fused: output, hsi, msi, ...(change_mask && { change_mask }) });
      notify(`Showing ${output}`);
    } catch (error) {
      replace(parts.work, errorBox(error));
    }
  };
  const link = (path) => ({ href: `api/download?path=${encodeURIComponent(path)}`, download: "", className: "download" });
  const text = (path) => (downloads.length > 1 ? `Download ${path}` : "Download");
  return [
    make("h3", {}, "Done"),
    make("p", {}, make("code", {}, output), ` by ${method}, ${bytes(size)}, in ${number(job.seconds, 2)} s`),
    ...job.notes.map((note) => make("p", { className: "warn" }, note)),
    make(
      "div",
      { className: "row" },
      button("View the result", view, { className: "primary", id: "fuse-view" }),
      downloads.map((path) => make("a", link(path), text(path))),
    ),
    method === defaultMethod && request && !request.options.consistency ? uncertaintyOffer(request) : null,
  ];
}

// The expected error of each value; only the default method estimates it.
function uncertaintyOffer({ output: fused, hsi, msi, options }) {
  const box = make("div", {});
  const path = fused.replace(/(\.[^.]+)$/, "_uncertainty$1");
  const ended = (job) => {
    if (job.state !== "done") return replace(box, job.error ? errorBox(job.error) : start);
    const view = () => openScene({ fused, hsi, msi, uncertainty: path }).catch(showError);
    replace(box, make("code", {}, path), " ", button("View both", view, { id: "view-uncertainty" }));
    emit("files", "uncertainty");
  };
  const begin = async () => {
    try {
      const job = await post("api/uncertainty", { hsi, msi, output: path, options: { ...options, resume: false } });
      replace(box, watch(job, "Uncertainty", ended));
    } catch (error) {
      replace(box, errorBox(error));
    }
  };
  const start = button("Compute its uncertainty", begin, { id: "find-uncertainty", title: `Writes ${path}` });
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
