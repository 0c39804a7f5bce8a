// Draws one layer from its tiles onto a canvas. Where a tile is still missing, a coarser one stands in for it.
import { bitmapOf, source, url } from "./tiles.js";
import { state } from "./store.js";

const previous = new Map(); // layer -> the source before the present one, shown until that has arrived

let latest = new Map();

export function sourceOf(layer) {
  const now = source(layer),
    before = latest.get(layer);
  if (before && (before.base !== now.base || before.query !== now.query)) previous.set(layer, before);
  latest.set(layer, now);
  return now;
}

export function clearSources() {
  previous.clear();
  latest = new Map();
}

// The level whose pixels come closest to those of the screen.
export function levelFor(view) {
  const level = Math.round(Math.log2(1 / (view.zoom * devicePixelRatio)));
  return Math.min(Math.max(0, level), state.scene.levels);
}

export function addresses(view, layer) {
  const from = sourceOf(layer),
    level = levelFor(view);
  return view.tiles(level, state.scene.tile).map(({ row, column }) => url(from, level, row, column));
}

// Returns whether everything that should be seen is there.
export function paintLayer(context, view, layer) {
  const from = sourceOf(layer),
    level = levelFor(view);
  const old = previous.get(layer);
  const places = view.tiles(level, state.scene.tile);
  const whole = places.every(({ row, column }) => bitmapOf(url(from, level, row, column)));
  context.imageSmoothingEnabled = view.zoom * 2 ** level * devicePixelRatio < 1.3;
  if (!whole && old) for (const place of places) paintTile(context, view, old, level, place);
  for (const place of places) paintTile(context, view, from, level, place);
  if (whole) previous.delete(layer);
  return whole;
}

function paintTile(context, view, from, level, { row, column }) {
  const side = state.scene.tile;
  for (let coarser = level; coarser <= state.scene.levels; coarser += 1) {
    const shrink = 2 ** (coarser - level);
    const bitmap = bitmapOf(url(from, coarser, Math.floor(row / shrink), Math.floor(column / shrink)));
    if (!bitmap) continue;
    const part = side / shrink;
    const box = screenBox(view, level, row, column);
    context.drawImage(
      bitmap,
      (column % shrink) * part,
      (row % shrink) * part,
      part,
      part,
      box.left,
      box.top,
      box.width,
      box.height,
    );
    return;
  }
}

// On whole device pixels, so that neighbours meet without a seam.
function screenBox(view, level, row, column) {
  const span = state.scene.tile * 2 ** level;
  const ratio = devicePixelRatio;
  const start = view.toScreen(column * span, row * span),
    end = view.toScreen((column + 1) * span, (row + 1) * span);
  const left = Math.round(start.left * ratio),
    top = Math.round(start.top * ratio);
  return { left, top, width: Math.round(end.left * ratio) - left, height: Math.round(end.top * ratio) - top };
}
