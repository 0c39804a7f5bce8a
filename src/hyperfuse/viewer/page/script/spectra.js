// The panel of spectra: what all open images measured at the places that were chosen.
import { button, find, make, number, replace, save } from "./dom.js";
import { PALETTE } from "./marks.js";
import { clearPins, removePin, setDrawing, setPinned, startPins } from "./pins.js";
import { drawSample, themeColours } from "./plot.js";
import { csv, positions, STYLES } from "./series.js";
import { hidden, savePlot, SpectraPlot } from "./spectra_plot.js";
import { image, on, state, titleOf } from "./store.js";

let plot = null;

function render() {
  const panel = find("panel-spectra");
  if (!state.pins.length) return replace(panel, invitation());
  plot = new SpectraPlot(description());
  replace(
    panel,
    make(
      "div",
      { className: "group" },
      plot.canvas,
      plot.reading,
      make("ul", { className: "pins", "aria-label": "Places" }, state.pins.map(pinRow)),
      buttons(),
    ),
    make("div", { className: "group" }, make("h3", {}, "Images"), make("div", { className: "options" }, imageChecks())),
    make("div", { className: "group" }, table(state.pins.at(-1))),
  );
  plot.draw();
}

function invitation() {
  return make(
    "div",
    { className: "group" },
    make("p", {}, "Click a pixel on the map to see what every open image measured there."),
    make("p", { className: "note" }, "Shift and click keeps it beside the next one. A region gives the mean of its pixels."),
    make("div", { className: "row" }, drawButton()),
  );
}

function description() {
  const images = [...new Set(state.pins.flatMap((pin) => pin.spectra.map((one) => titleOf(one.role))))].join(", ");
  return `Spectra at ${state.pins.map((pin) => pin.title).join("; ")} of ${images}. The table below holds the numbers.`;
}

function pinRow(pin) {
  const dot = make("span", { className: "dot" });
  dot.style.background = PALETTE[pin.colour];
  const keeping = { className: "quiet", "aria-pressed": pin.pinned, title: "Keep (P)", "aria-label": `Keep ${pin.title}` };
  return make(
    "li",
    { className: pin.pinned ? "" : "current" },
    dot,
    make("span", { className: "what" }, `${pin.number}  ${pin.title}`, uncertainty(pin)),
    button(pin.pinned ? "pinned" : "pin", () => setPinned(pin, !pin.pinned), keeping),
    button("✕", () => removePin(pin), { className: "quiet", "aria-label": `Remove ${pin.title}` }),
  );
}

// Where there is one number for all bands; one for each is drawn around the line.
function uncertainty(pin) {
  const sure = pin.spectra.find((one) => one.role === "uncertainty" && one.mean.length === 1 && one.mean[0] !== null);
  return sure ? make("span", { className: "note block" }, `uncertainty ${number(sure.mean[0], 3)}`) : null;
}

function drawButton() {
  const properties = { id: "draw-region", "aria-pressed": state.drawing, title: "Draw a region (R)" };
  return button("Draw a region", () => setDrawing(!state.drawing), properties);
}

function buttons() {
  return make(
    "div",
    { className: "row" },
    drawButton(),
    button("CSV", () => save(new Blob([csv()], { type: "text/csv" }), "spectra.csv"), { id: "save-csv" }),
    button("PNG", savePlot, { id: "save-plot" }),
    button("Clear", clearPins),
  );
}

function imageChecks() {
  const roles = state.scene.images.map((one) => one.role).filter((role) => role in STYLES);
  return roles.map((role) => {
    const isKnown = Boolean(positions(image(role)));
    const input = make("input", { type: "checkbox", checked: isKnown && !hidden.has(role), disabled: !isKnown });
    input.addEventListener("change", () => {
      if (input.checked) hidden.delete(role);
      else hidden.add(role);
      plot.draw();
    });
    const sample = make("canvas", { className: "line", width: 60, height: 24, "aria-hidden": "true" });
    drawSample(sample, { colour: themeColours().text, ...STYLES[role] });
    return make("label", { title: isKnown ? "" : "Its wavelengths are unknown" }, input, sample, titleOf(role));
  });
}

// The numbers of one place, for those who cannot see the plot and those who want to copy them.
function table(pin) {
  const most = Math.max(...pin.spectra.map((one) => one.mean.length));
  const spectra = pin.spectra.filter((one) => one.mean.length === most);
  const { good, wavelength_nm: nm } = image(spectra[0].role);
  const cell = (text) => make("td", { className: "number" }, text);
  const rows = good.map((isGood, band) => {
    const values = spectra.map((one) => cell(number(one.mean[band])));
    return make(
      "tr",
      { className: isGood ? "" : "faint" },
      cell(band + 1),
      cell(number(nm[band], 5)),
      values,
      cell(isGood ? "" : "bad"),
    );
  });
  const titles = ["band", "nm", ...spectra.map((one) => titleOf(one.role)), ""];
  const head = make(
    "tr",
    {},
    titles.map((text) => make("th", { scope: "col", className: "number" }, text)),
  );
  const whole = make("table", {}, make("thead", {}, head), make("tbody", {}, rows));
  const scrolled = make("div", { className: "scroll", tabindex: "0" }, whole);
  return make("details", {}, make("summary", {}, `Values at ${pin.title}`), scrolled);
}

export function startSpectra() {
  startPins();
  on("scene", () => hidden.clear());
  on("pins", render);
  on("theme", render);
  on("tab", (name) => name === "spectra" && plot?.draw());
  new ResizeObserver(() => plot?.draw()).observe(find("panel-spectra"));
  render();
}
