// The panel of spectra: pixels that were clicked, regions that were drawn, and what all open images measured there.
import { get, post } from "./api.js";
import { find, make, number, replace, save } from "./dom.js";
import { PALETTE } from "./marks.js";
import { complain, say } from "./messages.js";
import { PAPER, Plot, themeColours } from "./plot.js";
import { STYLES, axis, csv, positions, seriesOf, shaded } from "./series.js";
import { image, on, state, tell, titleOf } from "./store.js";
import { showTab } from "./tabs.js";

const MOST_PINS = PALETTE.length;
const hidden = new Set();
let canvas, reading, hoverX = null, asked = 0, count = 0;

async function pick({ row, column, keep }) {
  const mine = (asked += 1);
  try {
    const { spectra } = await get(`api/spectra/${state.scene.number}?row=${row}&column=${column}`);
    if (mine !== asked && !keep) return;
    add({ row, column, spectra, title: `row ${row + 1}, column ${column + 1}` }, keep);
  } catch (error) { complain(error); }
}

async function region(corners) {
  setDrawing(false);
  try {
    const { spectra } = await post(`api/regions/${state.scene.number}`, { corners });
    if (!spectra.length) return say("The region holds no pixel", "bad");
    const first = spectra.find((one) => one.role === state.scene.lead) ?? spectra[0];
    add({ corners, spectra, title: `region of ${first.pixels} pixels${first.sampled ? " (sampled)" : ""}` }, true);
  } catch (error) { complain(error); }
}

function add(pin, keep) {
  // A pixel that was not pinned makes room for the next one.
  state.pins = state.pins.filter((other) => other.pinned);
  if (state.pins.length >= MOST_PINS) return say(`At most ${MOST_PINS} places: remove one first`, "bad");
  const used = new Set(state.pins.map((other) => other.colour));
  const colour = PALETTE.findIndex((_, index) => !used.has(index));
  count += 1;
  state.pins.push({ ...pin, colour, number: count, pinned: Boolean(keep) });
  showTab("spectra");
  changed();
}

export function pinLast() {
  const last = state.pins.find((pin) => !pin.pinned);
  if (last) { last.pinned = true; changed(); }
}

export function clearPins() {
  state.pins = [];
  count = 0;
  changed();
}

export function setDrawing(drawing) {
  state.drawing = drawing;
  find("draw-region")?.setAttribute("aria-pressed", drawing);
  if (drawing) say("Draw around a region on the map");
}

function changed() {
  tell("pins");
  render();
}

function render() {
  const panel = find("panel-spectra");
  if (!state.pins.length) {
    return replace(panel, make("div", { className: "group" },
      make("p", {}, "Click a pixel on the map to see what every open image measured there."),
      make("p", { className: "note" }, "Shift and click, or the pin, keeps it beside the next one. A region gives the mean of its pixels."), make("div", { className: "row" }, drawButton())));
  }
  canvas = make("canvas", { className: "plot", id: "plot", role: "img", "aria-label": description(), on: { pointermove: hover, pointerleave: () => hover(null) } });
  reading = make("p", { className: "reading", "aria-live": "off" });
  replace(panel,
    make("div", { className: "group" }, canvas, reading, make("ul", { className: "pins", "aria-label": "Places" }, state.pins.map(pinRow)), buttons()),
    make("div", { className: "group" }, make("h3", {}, "Images"), imageChecks()),
    make("div", { className: "group" }, table()));
  draw();
}

function description() {
  const images = [...new Set(state.pins.flatMap((pin) => pin.spectra.map((one) => titleOf(one.role))))].join(", ");
  return `Spectra at ${state.pins.map((pin) => pin.title).join("; ")} of ${images}. The table below holds the numbers.`;
}

function pinRow(pin) {
  const dot = make("span", { className: "dot" });
  dot.style.background = PALETTE[pin.colour];
  const keep = make("button", { type: "button", className: "quiet", "aria-pressed": pin.pinned, title: "Keep (P)", "aria-label": `Keep ${pin.title}`,
    on: { click: () => { pin.pinned = !pin.pinned; changed(); } } }, pin.pinned ? "pinned" : "pin");
  const remove = make("button", { type: "button", className: "quiet", "aria-label": `Remove ${pin.title}`,
    on: { click: () => { state.pins = state.pins.filter((other) => other !== pin); changed(); } } }, "✕");
  return make("li", { className: pin.pinned ? "" : "current" }, dot, make("span", { className: "what" }, `${pin.number}  ${pin.title}`), keep, remove);
}

const drawButton = () => make("button", { type: "button", id: "draw-region", "aria-pressed": state.drawing, title: "Draw a region (R)", on: { click: () => setDrawing(!state.drawing) } }, "Draw a region");

function buttons() {
  return make("div", { className: "row" }, drawButton(),
    make("button", { type: "button", id: "save-csv", on: { click: () => save(new Blob([csv()], { type: "text/csv" }), "spectra.csv") } }, "CSV"),
    make("button", { type: "button", id: "save-plot", on: { click: savePlot } }, "PNG"),
    make("button", { type: "button", on: { click: clearPins } }, "Clear"));
}

function imageChecks() {
  const roles = state.scene.images.map((one) => one.role).filter((role) => role in STYLES);
  return make("div", { className: "options" }, roles.map((role) => {
    const drawn = positions(image(role));
    return make("label", { title: drawn ? "" : "Its wavelengths are unknown" },
      make("input", { type: "checkbox", checked: drawn && !hidden.has(role), disabled: !drawn, on: { change: (event) => { event.target.checked ? hidden.delete(role) : hidden.add(role); draw(); } } }),
      sample(role), titleOf(role));
  }));
}

function sample(role) {
  const line = make("canvas", { className: "line", width: 60, height: 24, "aria-hidden": "true" });
  const context = line.getContext("2d");
  context.scale(2, 2);
  context.strokeStyle = context.fillStyle = themeColours().text;
  context.lineWidth = 2;
  context.setLineDash(STYLES[role].dash ?? []);
  if (STYLES[role].marks) { context.moveTo(15, 1); context.lineTo(20, 6); context.lineTo(15, 11); context.lineTo(10, 6); context.fill(); }
  else { context.moveTo(0, 6); context.lineTo(30, 6); context.stroke(); }
  return line;
}

const lines = () => state.pins.flatMap((pin) => seriesOf(pin, PALETTE[pin.colour], hidden));
const options = (series) => ({ series, shaded: shaded(), xLabel: axis().label, zero: true, hover: hoverX });

export function draw() {
  if (!canvas?.isConnected || !canvas.clientWidth) return;
  const plot = new Plot(canvas);
  plot.draw(options(lines()));
  canvas.plot = plot;
}

function hover(event) {
  hoverX = null;
  reading.textContent = "";
  if (event && canvas.plot) {
    const x = canvas.plot.valueAt(event.clientX - canvas.getBoundingClientRect().left);
    const near = (line) => line.x.reduce((best, value, index) => (line.y[index] !== null && Math.abs(value - x) < Math.abs((line.x[best] ?? Infinity) - x) ? index : best), -1);
    const { x0, x1 } = canvas.plot.range;
    const found = lines().map((line) => ({ line, index: near(line) })).filter(({ line, index }) => index >= 0 && Math.abs(line.x[index] - x) < (x1 - x0) / 30);
    if (found.length) {
      hoverX = found[0].line.x[found[0].index];
      const unit = axis().isWavelength ? `${number(hoverX, 5)} nm` : `band ${hoverX}`;
      const several = state.pins.length > 1;
      reading.textContent = `${unit}: ` + found.slice(0, 8).map(({ line, index }) => `${several ? `${line.place} ` : ""}${titleOf(line.role)} ${number(line.y[index])}`).join(", ");
    }
  }
  draw();
}

function table() {
  const pin = state.pins.at(-1);
  const spectra = pin.spectra.filter((one) => image(one.role));
  const most = Math.max(...spectra.map((one) => one.mean.length));
  const long = spectra.find((one) => one.mean.length === most);
  const rows = long.mean.map((_, band) => {
    const good = image(long.role).good[band];
    const cells = spectra.map((one) => make("td", { className: "number" }, one.mean.length === most ? number(one.mean[band]) : ""));
    return make("tr", { className: good ? "" : "faint" }, make("td", { className: "number" }, String(band + 1)), make("td", { className: "number" }, number(image(long.role).wavelength_nm[band], 5)), cells, make("td", {}, good ? "" : "bad"));
  });
  const head = make("tr", {}, ["band", "nm", ...spectra.map((one) => titleOf(one.role)), ""].map((text) => make("th", { scope: "col", className: "number" }, text)));
  return make("details", {}, make("summary", {}, `Values at ${pin.title}`), make("div", { className: "scroll", tabindex: "0" }, make("table", {}, make("thead", {}, head), make("tbody", {}, rows))));
}

function savePlot() {
  const paper = make("canvas", { data: { ratio: 2, width: 900, height: 480 } });
  new Plot(paper, PAPER).draw({ ...options(lines()), hover: null });
  paper.toBlob((blob) => save(blob, "spectra.png"), "image/png");
}

export function startSpectra() {
  on("pick", pick);
  on("region", region);
  on("scene", () => { hidden.clear(); clearPins(); });
  on("theme", render);
  on("tab", (name) => name === "spectra" && draw());
  new ResizeObserver(draw).observe(find("panel-spectra"));
  render();
}
