// The legend, the position under the pointer and the scale bar.
import { get } from "./api.js";
import { find, make, number, replace } from "./dom.js";
import { view, visibleLayers } from "./map.js";
import { image, isMap, on, renderingQuery, state, titleOf } from "./store.js";

const NICE = [1, 2, 5];
const SIDES = ["legend", "legend-b"];

// The first layer is at the left, the second of a swipe at the right.
function update() {
  SIDES.forEach((id, side) => show(find(id), visibleLayers()[side]));
}

const hasRamp = (layer) => isMap(layer) || ["band", "index"].includes(state.rendering.style);

// A legend never outlives what it describes: until the next one has arrived, only its title is there.
async function show(box, layer) {
  const address = layer && hasRamp(layer) && `api/legends/${state.scene.number}/${layer}?${renderingQuery(layer)}`;
  if ((box.dataset.address ?? "") === (address || "")) return;
  box.dataset.address = address || "";
  box.hidden = !address;
  if (!address) return replace(box);
  replace(box, make("figcaption", {}, titleOf(layer)), make("div", { className: "pending" }, "loading …"));
  const legend = await get(address).catch(() => null);
  if (box.dataset.address !== address) return;
  box.hidden = !legend?.stops;
  if (legend?.stops)
    replace(
      box,
      make("figcaption", {}, `${image(layer) ? `${titleOf(layer)}, ` : ""}${legend.label}`),
      ramp(legend.stops),
      ends(legend),
    );
}

function ramp(stops) {
  const canvas = make("canvas", { width: 256, height: 12, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const gradient = context.createLinearGradient(0, 0, 256, 0);
  stops.forEach((colour, index) => gradient.addColorStop(index / (stops.length - 1), colour));
  context.fillStyle = gradient;
  context.fillRect(0, 0, 256, 12);
  return canvas;
}

const ends = ({ limits: [[low, high]], unit }) =>
  make(
    "div",
    { className: "ends" },
    make("span", {}, `≤ ${number(low, 3)}${unit}`),
    make("span", {}, `≥ ${number(high, 3)}${unit}`),
  );

function position({ row, column }) {
  const { transform, crs, height, width } = state.scene;
  if (row < -0.5 || column < -0.5 || row > height - 0.5 || column > width - 0.5) return [];
  const pixel = `row ${Math.round(row) + 1}, column ${Math.round(column) + 1}`;
  if (!transform) return [pixel];
  const [a, b, c, d, e, f] = transform,
    x = column + 0.5,
    y = row + 0.5;
  const digits = Math.abs(a) < 0.01 ? 5 : 0;
  const there = ` · ${(a * x + b * y + c).toFixed(digits)}, ${(d * x + e * y + f).toFixed(digits)}`;
  return [pixel, there, crs ? make("span", { className: "crs" }, ` (${crs})`) : null];
}

function scaleBar() {
  const bar = find("scale-bar");
  const { transform, crs } = state.scene;
  // Degrees are no lengths, and without a CRS nobody knows the unit.
  const size = transform && crs && Math.hypot(transform[0], transform[3]);
  const unit = size && size >= 0.01 ? "m" : "pixels";
  const perScreenPixel = (unit === "m" ? size : 1) / view.zoom;
  const target = 110 * perScreenPixel,
    power = 10 ** Math.floor(Math.log10(target));
  const length = power * NICE.filter((nice) => nice * power <= target).at(-1);
  bar.style.width = `${length / perScreenPixel}px`;
  bar.hidden = false;
  const text =
    unit === "m"
      ? length >= 1000
        ? `${length / 1000} km`
        : `${number(length)} m`
      : `${number(length)} ${length === 1 ? "pixel" : "pixels"}`;
  find("scale-text").textContent = text;
}

export function startLegend() {
  for (const event of ["rendering", "layers", "compare", "peek", "scene"]) on(event, update);
  on("hover", (at) => replace(find("place"), state.scene.number ? position(at) : []));
  on("drawn", () => {
    if (state.scene.number) scaleBar();
    else {
      find("scale-bar").hidden = true;
      find("scale-text").textContent = "";
    }
  });
}
