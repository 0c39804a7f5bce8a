// Fuse from the page: choose or drop two files, see what is in them, estimate, choose a method, start, watch, look at the result.
import { Complaint, get, post, upload } from "./api.js";
import { bytes, find, make, number, replace } from "./dom.js";
import { watch } from "./jobs.js";
import { errorBox, say } from "./messages.js";
import { Plot } from "./plot.js";
import { PALETTE } from "./marks.js";
import { facts, openScene } from "./files.js";
import { on, state, tell } from "./store.js";

const TITLES = { hsi: "HSI: coarse, many narrow bands", msi: "MSI: fine, few bands" };
const form = { hsi: "", msi: "", method: "auto", output: "", estimate: true, consistency: false, trust: "msi", overwrite: false, overviews: true, ram_gb: null };
const found = {}; // path -> summary
let files = [], methods = [], ready = false, uploadLimit = Infinity;
const parts = {};

export function startFusing() {
  on("scene", () => { uploadLimit = state.scene.upload_limit ?? uploadLimit; });
  on("tab", (name) => name === "fuse" && !ready && render());
  on("files", async () => { if (ready) await listFiles(); });
}

async function render() {
  ready = true;
  const panel = find("panel-fuse");
  for (const name of ["choose", "estimated", "options", "work"]) parts[name] = make("div", { className: "group" });
  replace(panel, parts.choose, parts.estimated, parts.options, parts.work);
  try {
    [methods] = await Promise.all([get("api/methods"), listFiles()]);
    renderOptions();
  } catch (error) { replace(parts.work, errorBox(error)); ready = false; }
  for (const job of state.scene.jobs ?? []) if (job.kind === "fuse") follow(job);
}

async function listFiles() {
  ({ files } = await get("api/files"));
  renderChoice();
}

function renderChoice() {
  const picker = (role) => make("div", { className: "steps" }, make("label", { className: "field" }, make("span", {}, TITLES[role]),
    make("select", { className: "wide", id: `fuse-${role}`, on: { change: (event) => choose(role, event.target.value) } }, make("option", { value: "" }, "choose a file"),
      files.map((file) => make("option", { value: file.path, selected: file.path === form[role] }, `${file.path} (${bytes(file.bytes)})`)))), make("div", { id: `card-${role}` }));
  replace(parts.choose, make("h3", {}, "1  Two images of one place"), dropZone(), picker("hsi"), picker("msi"));
  for (const role of ["hsi", "msi"]) showCard(role);
}

function dropZone() {
  const input = make("input", { type: "file", multiple: true, className: "unseen", id: "drop-input", on: { change: () => take([...input.files]) } });
  const zone = make("div", { className: "drop", id: "drop" }, make("span", {}, "Drop files here, or"), make("button", { type: "button", on: { click: () => input.click() } }, "choose from this machine"), input, make("div", { id: "uploads", className: "wide" }));
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => { event.preventDefault(); zone.classList.remove("over"); take([...event.dataTransfer.files]); });
  return zone;
}

// Copied into the folder; the one with more bands is the HSI.
async function take(dropped) {
  const taken = [];
  for (const file of dropped) {
    const bar = make("progress", { max: 1, value: 0, "aria-label": `Copying ${file.name}` });
    const row = make("div", {}, make("span", { className: "small" }, file.name), bar);
    find("uploads").append(row);
    try {
      if (file.size > uploadLimit) throw new Complaint({ got: `${file.name} is ${bytes(file.size)}`, expected: `at most ${bytes(uploadLimit)}`, remedy: "copy it into the folder, then choose it from the list" });
      taken.push((await upload(file, (share) => { bar.value = share; })).path);
      row.remove();
    } catch (error) { row.replaceChildren(errorBox(error)); }
  }
  const troubles = [...find("uploads").children];
  await listFiles();
  tell("files");
  find("uploads").append(...troubles);
  const cubes = taken.filter((path) => files.some((file) => file.path === path));
  if (cubes.length === 1) await choose(!form.hsi ? "hsi" : "msi", cubes[0]);
  if (cubes.length === 2) {
    const summaries = await Promise.all(cubes.map((path) => summary(path).catch(() => null)));
    const first = (summaries[0]?.bands ?? 0) >= (summaries[1]?.bands ?? 0) ? 0 : 1;
    await Promise.all([choose("hsi", cubes[first]), choose("msi", cubes[1 - first])]);
  }
}

async function summary(path) {
  found[path] ??= await get(`api/files/summary?path=${encodeURIComponent(path)}`);
  return found[path];
}

async function choose(role, path) {
  form[role] = path;
  find(`fuse-${role}`).value = path;
  parts.estimated.replaceChildren();
  renderOptions();
  await showCard(role);
  renderEstimation();
}

async function showCard(role) {
  const box = find(`card-${role}`), path = form[role];
  if (!path) return replace(box);
  try {
    const about = await summary(path);
    if (form[role] !== path) return;
    const lines = Object.fromEntries(facts(about));
    replace(box, make("div", { className: "card" }, make("img", { src: `api/files/picture?path=${encodeURIComponent(path)}`, alt: `Small picture of ${path}`, width: 84, height: 84 }),
      make("div", {}, make("p", {}, make("strong", {}, lines.Size)), make("p", {}, `${lines.Wavelengths}, ${lines.Type}`), make("p", {}, about.transform ? `pixel ${lines.Pixel}, ${lines.CRS}` : lines.Pixel), make("p", { className: "faint" }, `values ${lines.Values}`))));
  } catch (error) { replace(box, errorBox(error)); }
}

const isReady = () => form.hsi && form.msi && found[form.hsi] && found[form.msi];

function renderEstimation() {
  if (!isReady()) return replace(parts.estimated);
  const swapped = found[form.hsi].bands < found[form.msi].bands;
  const exchange = make("div", { className: "warn" }, "The MSI has more bands than the HSI. ", make("button", { type: "button", on: { click: async () => { const { hsi, msi } = form; await choose("hsi", msi); await choose("msi", hsi); } } }, "Exchange them"));
  replace(parts.estimated, make("h3", {}, "2  How they were observed"), swapped ? exchange : null,
    make("div", { className: "row" }, make("button", { type: "button", id: "estimate", on: { click: estimate } }, "Estimate"), make("span", { className: "note" }, "shift, blur, response, noise; fusing does this too")), make("div", { id: "estimation" }));
}

async function estimate() {
  const box = find("estimation");
  try {
    const job = await post("api/estimate", { hsi: form.hsi, msi: form.msi });
    replace(box, watch(job, "Estimating", (end) => {
      replace(box, end.state === "done" ? observation(end.result) : end.error ? errorBox(end.error) : null);
      box.scrollIntoView({ block: "nearest", behavior: "smooth" });
    }));
  } catch (error) { replace(box, errorBox(error)); }
}

function observation(seen) {
  const pair = (values, digits = 3) => values.map((value) => number(value, digits)).join(", ");
  const middle = [...seen.hsi_noise].sort((one, other) => one - other)[Math.floor(seen.hsi_noise.length / 2)];
  const rows = [["Scale", pair(seen.scale)], ["Shift", `${pair(seen.misregistration)} fine pixels down, right`], ["Point spread", `${pair(seen.sigma)} fine pixels (sigma)`],
    ["HSI noise", `${number(middle, 3)} (median)`], ["MSI noise", pair(seen.msi_noise)], ["Confidence", number(seen.confidence, 2)]];
  const plot = make("canvas", { className: "plot low", role: "img", "aria-label": "Estimated response of each MSI band" });
  requestAnimationFrame(() => drawResponse(plot, seen.response));
  return make("div", { className: "steps" }, make("table", { className: "meta" }, make("tbody", {}, rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", { className: "" }, value))))), make("h3", {}, "Response"), plot, seen.notes.map((note) => make("p", { className: "warn" }, note)));
}

function drawResponse(canvas, response) {
  const about = found[form.hsi];
  const usable = about.wavelength_nm.map((value, band) => ({ value, band })).filter(({ band }) => about.good[band]);
  const along = usable.length === response[0].length && usable.every(({ value }) => value !== null) ? usable.map(({ value }) => value) : response[0].map((_, band) => band + 1);
  const series = response.map((row, index) => ({ x: along, y: row, colour: PALETTE[index % PALETTE.length] }));
  if (canvas.clientWidth) new Plot(canvas).draw({ series, xLabel: along[0] > 100 ? "wavelength (nm)" : "band", zero: true });
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
  const line = make("p", { className: "note" });
  const describe = () => { const one = methods.find((method) => method.name === form.method); line.textContent = one ? `${one.line}${one.reference ? ` (${one.reference})` : ""}` : ""; };
  const check = (name, text) => make("label", { className: "check" }, make("input", { type: "checkbox", checked: form[name], on: { change: (event) => { form[name] = event.target.checked; } } }), text);
  const start = make("button", { type: "button", className: "primary wide", id: "fuse-start", disabled: !form.hsi || !form.msi, on: { click: () => fuse(chosen()) } }, "Fuse");
  describe();
  replace(parts.options, make("h3", {}, "3  Fuse"),
    make("label", { className: "field" }, make("span", {}, "Method"), make("select", { className: "wide", id: "fuse-method", on: { change: (event) => { form.method = event.target.value; describe(); } } }, methods.map((one) => make("option", { value: one.name, selected: one.name === form.method }, one.name)))), line,
    make("label", { className: "field" }, make("span", {}, "Write to"), make("input", { type: "text", id: "fuse-output", value: form.output, spellcheck: false, on: { input: (event) => { form.output = event.target.value.trim(); } } })),
    make("details", {}, make("summary", {}, "More choices"), check("estimate", "Estimate shift, blur, response and noise first"), check("consistency", "Make it agree once more with both images"), check("overwrite", "Replace the file if it exists"), check("overviews", "With overviews, so that it is quick to look at (GeoTIFF)"),
      make("label", { className: "field" }, make("span", {}, "Memory at most, GB"), make("input", { type: "number", min: 0.5, step: 0.5, value: form.ram_gb ?? "", placeholder: "half of the machine's", on: { change: (event) => { form.ram_gb = Number(event.target.value) || null; } } })),
      make("label", { className: "field" }, make("span", {}, "Whose georeference is right"), make("select", { on: { change: (event) => { form.trust = event.target.value; } } }, ["msi", "hsi"].map((name) => make("option", { value: name, selected: name === form.trust }, name.toUpperCase()))))), start);
}

async function fuse(choices) {
  try { follow(await post("api/fuse", choices), choices); } catch (error) { replace(parts.work, errorBox(error)); }
}

// Only GeoTIFF holds overviews.
const chosen = () => ({ ...form, overviews: form.overviews && /\.tiff?$/i.test(form.output) });

function follow(job, choices = null) {
  find("fuse-start").disabled = true;
  replace(parts.work, watch(job, "Fusing", (end) => ended(end, choices)));
  parts.work.scrollIntoView({ block: "nearest" });
}

async function ended(job, choices) {
  find("fuse-start").disabled = !form.hsi || !form.msi;
  if (job.state === "failed") return replace(parts.work, errorBox(job.error));
  if (job.state === "cancelled") return replace(parts.work, make("div", { className: "warn", id: "fuse-cancelled" }, make("p", {}, "Cancelled. No image was written; finished tiles of a large one are kept."),
    choices ? make("button", { type: "button", on: { click: () => fuse({ ...choices, resume: true }) } }, "Go on with it") : null));
  const { output, method, bytes: size, downloadable, hsi, msi } = job.result;
  const view = async () => { try { await openScene({ fused: output, hsi, msi }); say(`Showing ${output}`); } catch (error) { replace(parts.work, errorBox(error)); } };
  form.output = "";
  replace(parts.work, make("h3", {}, "Done"), make("p", {}, make("code", {}, output), ` by ${method}, ${bytes(size)}, in ${number(job.seconds, 2)} s`),
    job.notes.map((note) => make("p", { className: "warn" }, note)),
    make("div", { className: "row" }, make("button", { type: "button", className: "primary", id: "fuse-view", on: { click: view } }, "View the result"),
      downloadable ? make("a", { href: `api/download?path=${encodeURIComponent(output)}`, download: "", id: "fuse-download" }, "Download") : null));
  say(`${output} is fused`, "", 8);
  await listFiles();
  renderOptions();
  tell("files");
}
