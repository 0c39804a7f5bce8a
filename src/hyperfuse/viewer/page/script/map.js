// The map: what is on the canvas, and when it is drawn again.
import { find, save } from "./dom.js";
import { showError } from "./messages.js";
import { addresses, clearSources, paintLayer } from "./painter.js";
import { paintMarks } from "./marks.js";
import { emit, on, state } from "./store.js";
import { clearFailures, hasAny, isBusy, isComplete, listen, requestTiles, showing } from "./tiles.js";
import { Viewport } from "./viewport.js";

export const view = new Viewport();
const canvas = find("canvas");
let scheduled = false;

export function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

export const visibleLayers = () => {
  const { a, b } = state.layers;
  if (!state.scene.number || !a) return [];
  if (state.compare === "one" || !b) return [state.showsB && b ? b : a];
  return [a, b];
};

function draw() {
  scheduled = false;
  const context = canvas.getContext("2d");
  const whole = paint(context);
  const needed = visibleLayers().flatMap((layer) => addresses(view, layer));
  showing(needed);
  requestTiles(needed);
  find("loading").hidden = !isBusy();
  canvas.dataset.whole = whole && !isBusy();
  canvas.dataset.zoom = view.zoom;
  markOnce("first picture", hasAny());
  markOnce("whole picture", whole && hasAny() && isComplete());
  emit("drawn", view);
}

// For measurements of how soon something can be seen.
function markOnce(name, happened) {
  if (happened && !performance.getEntriesByName(name).length) performance.mark(name);
}

function paint(context) {
  context.clearRect(0, 0, canvas.width, canvas.height);
  const { a, b } = state.layers;
  const layers = visibleLayers();
  if (!layers.length) return true;
  let whole = true;
  if (layers.length === 1) whole = paintLayer(context, view, layers[0]);
  else if (state.compare === "blink") whole = paintLayer(context, view, state.showsB ? b : a);
  else {
    const middle = Math.round(state.split * canvas.width);
    whole = clipped(context, 0, middle, a) & clipped(context, middle, canvas.width, b);
  }
  paintMarks(context, view);
  return Boolean(whole);
}

function clipped(context, left, right, layer) {
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, canvas.height);
  context.clip();
  const whole = paintLayer(context, view, layer);
  context.restore();
  return whole;
}

function resize() {
  const { width, height } = canvas.getBoundingClientRect();
  view.resize(width, height);
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  redraw();
}

export function savePicture() {
  draw();
  canvas.toBlob((blob) => save(blob, `hyperfuse_${state.layers.a ?? "map"}.png`), "image/png");
}

export function startMap() {
  let lastError = "";
  listen(redraw, (error) => {
    if (error.status === 410) return emit("stale");
    if (error.message !== lastError) showError(error);
    lastError = error.message;
  });
  new ResizeObserver(resize).observe(canvas);
  on("scene", () => {
    clearSources();
    clearFailures();
    view.setGrid(state.scene.width ?? 1, state.scene.height ?? 1);
    resize();
  });
  for (const event of ["rendering", "layers", "compare", "pins"])
    on(event, () => {
      lastError = "";
      redraw();
    });
  resize();
}
