// Quality of the fused image in numbers.
import { post } from "./api.js";
import { find, make, number, replace } from "./dom.js";
import { watch } from "./jobs.js";
import { errorBox } from "./messages.js";
import { Plot } from "./plot.js";
import { axis, lineOf, positions, shaded } from "./series.js";
import { image, lead, on, state } from "./store.js";

const SCORES = [
  ["psnr_db", "PSNR", "dB, higher is better"],
  ["spectral_angle_degrees", "SAM", "degrees, lower is better"],
  ["ergas", "ERGAS", "lower is better"],
  ["ssim", "SSIM", "at most 1, higher is better"],
  ["uqi", "UQI", "at most 1, higher is better"],
  ["rmse", "RMSE", "in the image's unit"],
];
const CONSISTENCY = [
  ["hsi_rmse", "HSI, RMSE", "fused, degraded to the HSI"],
  ["hsi_angle_degrees", "HSI, angle", "degrees"],
  ["msi_rmse", "MSI, RMSE", "fused, integrated over the SRF"],
  ["msi_relative", "MSI, relative", "share of the signal"],
];
let result = null;

const canScore = () => image("fused") && (image("reference") || image("hsi"));

function render() {
  const panel = find("panel-scores");
  if (!canScore())
    return replace(
      panel,
      make(
        "p",
        { className: "note" },
        "Scores compare a fused image with its reference, or where there is none, with the images that it was fused from. Open them in Files.",
      ),
    );
  const way = image("reference")
    ? "Compares every pixel of the fused image with the reference."
    : "There is no reference: the fused image is degraded again and compared with its inputs.";
  replace(
    panel,
    make(
      "div",
      { className: "group" },
      make("p", { className: "note" }, way),
      make(
        "button",
        { type: "button", className: "primary", id: "score", on: { click: start } },
        result ? "Compute again" : "Compute scores",
      ),
    ),
    result,
  );
}

async function start() {
  const number_ = state.scene.number;
  const finish = (box) => {
    if (number_ === state.scene.number) {
      result = box;
      render();
    }
  };
  try {
    const job = await post("api/scores");
    replace(
      find("panel-scores"),
      watch(job, "Computing scores", (end) => {
        if (end.state === "done")
          finish(end.result.reference ? references(end.result.reference) : consistency(end.result.consistency));
        else finish(end.error ? errorBox(end.error) : null);
      }),
    );
  } catch (error) {
    finish(errorBox(error));
  }
}

const cards = (list, values) =>
  make(
    "div",
    { className: "scores" },
    list
      .filter(([name]) => values[name] !== null && values[name] !== undefined)
      .map(([name, title, caption]) =>
        make("div", { className: "score" }, make("span", {}, title), make("b", {}, number(values[name])), make("span", {}, caption)),
      ),
  );

function references(scores) {
  const plot = make("canvas", { className: "plot low", role: "img", "aria-label": "Root mean square error of each band" });
  requestAnimationFrame(() => drawBands(plot, scores.per_band));
  return make(
    "div",
    { className: "group", id: "scores" },
    cards(SCORES, scores),
    make("h3", {}, "RMSE by band"),
    plot,
    scores.notes.map((note) => make("p", { className: "note" }, note)),
  );
}

function drawBands(canvas, bands) {
  const one = lead();
  const errors = one.good.map(() => null);
  for (const { band, rmse } of bands) errors[band - 1] = rmse;
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  if (canvas.clientWidth)
    new Plot(canvas).draw({
      series: [{ ...lineOf(one, positions(one), errors), colour }],
      shaded: shaded(),
      xLabel: axis().label,
      zero: true,
    });
}

function consistency(scores) {
  const caption = scores.estimated
    ? "PSF, shift and SRF were estimated from the pair."
    : "Without the MSI, the PSF is assumed to be as wide as an HSI pixel.";
  return make(
    "div",
    { className: "group", id: "scores" },
    cards(CONSISTENCY, scores),
    make("p", { className: "note" }, caption, " Small errors here are necessary, not sufficient: see the maps of consistency."),
  );
}

export function startScores() {
  on("scene", () => {
    result = null;
    render();
  });
  on("tab", (name) => name === "scores" && !find("panel-scores").querySelector("progress") && render());
  on("theme", () => !find("panel-scores").querySelector("progress") && render());
}
