// How the chosen pair was observed, estimated before anything is fused.
import { post } from "./api.js";
import { button, facts, find, make, number, replace } from "./dom.js";
import { choose, chosen, summaryOf } from "./fuse_choice.js";
import { watch } from "./jobs.js";
import { PALETTE } from "./marks.js";
import { errorBox } from "./messages.js";
import { Plot } from "./plot.js";

export function renderEstimation(box) {
  const hsi = summaryOf(chosen.hsi);
  const msi = summaryOf(chosen.msi);
  const title = make("h3", {}, "2  How they were observed");
  if (!hsi || !msi) return replace(box, title, make("p", { className: "note" }, "Choose both images first."));
  replace(
    box,
    title,
    hsi.bands < msi.bands ? exchange() : null,
    make(
      "div",
      { className: "row" },
      button("Estimate", () => estimate({ ...chosen }), { id: "estimate" }),
      make("span", { className: "note" }, "shift, PSF, SRF, noise; fusing does this too"),
    ),
    make("div", { id: "estimation" }),
  );
}

function exchange() {
  const swap = async () => {
    const { hsi, msi } = chosen;
    await choose("hsi", msi);
    await choose("msi", hsi);
  };
  return make("div", { className: "warn" }, "The MSI has more bands than the HSI. ", button("Exchange them", swap));
}

async function estimate(pair) {
  const box = find("estimation");
  const ended = (job) => {
    if (job.state === "done") replace(box, observation(job.result, summaryOf(pair.hsi)));
    else replace(box, job.error ? errorBox(job.error) : null);
    box.scrollIntoView({ block: "nearest" });
  };
  try {
    replace(box, watch(await post("api/estimate", pair), "Estimating", ended));
  } catch (error) {
    replace(box, errorBox(error));
  }
}

function observation(seen, hsi) {
  const list = (values) => values.map((value) => number(value, 3)).join(", ");
  const noise = [...seen.hsi_noise].sort((one, other) => one - other)[Math.floor(seen.hsi_noise.length / 2)];
  const rows = [
    ["Scale", list(seen.scale)],
    ["Shift", `${list(seen.misregistration)} fine pixels down, right`],
    ["PSF", `${list(seen.sigma)} fine pixels (sigma)`],
    ["HSI noise", `${number(noise, 3)} (median)`],
    ["MSI noise", list(seen.msi_noise)],
    ["Confidence", number(seen.confidence, 2)],
  ];
  const plot = make("canvas", { className: "plot low", role: "img", "aria-label": "Estimated SRF of each MSI band" });
  requestAnimationFrame(() => drawSrf(plot, seen.srf, hsi));
  const notes = seen.notes.map((note) => make("p", { className: "warn" }, note));
  return make("div", { className: "steps" }, facts(rows), make("h3", {}, "SRF"), plot, notes);
}

function drawSrf(canvas, response, hsi) {
  const known = hsi?.wavelength_nm.filter((value, band) => hsi.good[band] && value !== null) ?? [];
  const isWavelength = known.length === response[0].length;
  const x = isWavelength ? known : response[0].map((_, band) => band + 1);
  const series = response.map((y, index) => ({ x, y, colour: PALETTE[index % PALETTE.length] }));
  if (canvas.clientWidth) new Plot(canvas).draw({ series, xLabel: isWavelength ? "wavelength (nm)" : "band", zero: true });
}
