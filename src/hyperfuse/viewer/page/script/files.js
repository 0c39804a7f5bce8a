// What is known about the open images, and a way to open others.
import { get, post } from "./api.js";
import { bytes, find, make, number, replace } from "./dom.js";
import { watch } from "./jobs.js";
import { complain, errorBox, say } from "./messages.js";
import { image, on, state, tell } from "./store.js";

const ROLES = { fused: "Fused or any cube", hsi: "HSI", msi: "MSI", reference: "Reference", uncertainty: "Uncertainty" };

function range(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? `${number(Math.min(...known), 5)} to ${number(Math.max(...known), 5)} nm` : "unknown";
}

export function facts(about) {
  const bad = about.good.filter((good) => !good).length;
  const rows = [
    ["Size", `${about.bands} bands, ${about.height} × ${about.width} pixels`], ["Type", about.dtype], ["Wavelengths", range(about.wavelength_nm)],
    ["FWHM", range(about.fwhm_nm)], ["Bad bands", bad ? String(bad) : "none"], ["CRS", about.crs ?? "none"],
    ["Pixel", about.transform ? about.pixel_size.map((size) => number(size)).join(" × ") : "no georeference"], ["Nodata", about.nodata ?? "none"],
    ["Values", about.sampled_minimum === null ? "only nodata (sampled)" : `${number(about.sampled_minimum)} to ${number(about.sampled_maximum)} (sampled)`],
  ];
  return [...rows, ...Object.entries(about.found ?? {}), ...Object.entries(about.attributes)];
}

const metaTable = (rows) => make("table", { className: "meta" }, make("tbody", {}, rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, String(value))))));

function imageCard(one) {
  const body = make("div", {});
  const details = make("details", { on: { toggle: async () => {
    if (!details.open || body.children.length) return;
    try { const about = await get(`api/images/${one.role}`); replace(body, metaTable([["File", about.file], ...facts(about)])); } catch (error) { replace(body, errorBox(error)); }
  } } }, make("summary", {}, `${one.title}: ${one.file}`), body);
  return make("div", {}, details, make("p", { className: "note" }, `${one.bands} bands, ${one.height} × ${one.width}${one.has_overviews ? ", with overviews" : ""}`), one.offers_overviews ? overviewOffer(one) : null);
}

function overviewOffer(one) {
  const box = make("div", { className: "steps" });
  const build = async () => {
    try {
      const job = await post("api/overviews", { role: one.role });
      replace(box, watch(job, `Building overviews of ${one.title}`, (end) => {
        if (end.state === "done") { say(`${one.title} has overviews now`); tell("reload"); }
        else replace(box, end.error ? errorBox(end.error) : offer);
      }));
    } catch (error) { complain(error); }
  };
  const offer = make("div", { className: "warn" }, make("p", {}, "This image is large and has no overviews, so looking at it from afar is slow. They can be built into a file beside it (", make("code", {}, `${one.file}.ovr`), ", about a third of its size); the image itself is not changed."),
    make("button", { type: "button", className: "build-overviews", on: { click: build } }, "Build overviews"));
  replace(box, offer);
  return box;
}

async function opener() {
  const box = make("div", { className: "group" }, make("h3", {}, "Open other files"));
  try {
    const { folder, files } = await get("api/files");
    if (!files.length) return box.append(make("p", { className: "note" }, `There are no cubes in ${folder}.`)), box;
    const selects = Object.fromEntries(Object.keys(ROLES).map((role) => [role, make("select", { className: "wide", id: `open-${role}` }, make("option", { value: "" }, "–"), files.map((file) => make("option", { value: file.path, selected: file.path === image(role)?.path }, `${file.path} (${bytes(file.bytes)})`)))]));
    const trouble = make("div", {});
    const open = async () => {
      const wanted = Object.fromEntries(Object.entries(selects).filter(([, select]) => select.value).map(([role, select]) => [role, select.value]));
      try { replace(trouble); await openScene(wanted); } catch (error) { replace(trouble, errorBox(error)); }
    };
    box.append(...Object.entries(ROLES).map(([role, title]) => make("label", { className: "field" }, make("span", {}, title), selects[role])), trouble, make("div", { className: "row" }, make("button", { type: "button", className: "primary", id: "open-files", on: { click: open } }, "Open")), make("p", { className: "note" }, `Files of the folder ${folder}.`));
  } catch (error) { box.append(errorBox(error)); }
  return box;
}

export async function openScene(files) {
  const scene = await post("api/scene", files);
  tell("opened", scene);
}

async function render() {
  const opened = state.scene.images.length ? make("div", { className: "group" }, make("h3", {}, "Open images"), state.scene.images.map((one) => imageCard(image(one.role)))) : null;
  replace(find("panel-files"), opened, await opener());
}

export function startFiles() {
  on("scene", () => { if (!find("panel-files").hidden) render(); else replace(find("panel-files")); });
  on("tab", (name) => name === "files" && !find("panel-files").children.length && render());
  on("files", () => { if (!find("panel-files").hidden) render(); else replace(find("panel-files")); });
}
