// Tiles: fetched while they are visible, from the middle outwards, and kept in a cache.
import { picture } from "./api.js";
import { renderingQuery, state } from "./store.js";

const MOST_KEPT = 420;
const AT_ONCE = 6;
const AGAIN_MS = 600;
const MOST_TRIES = 4;

const kept = new Map(); // url -> { bitmap, complete }
const underway = new Map(); // url -> AbortController
const failed = new Map(); // url -> tries
let queue = [];
let changed = () => {};
let reportError = () => {};

export function listen(onChange, onError) {
  changed = onChange;
  reportError = onError;
}

export const source = (layer) => ({ base: `api/tiles/${state.scene.number}/${layer}/`, query: renderingQuery(layer) });
export const url = (from, level, row, column) => `${from.base}${level}/${row}/${column}?${from.query}`;
export const hasAny = () => kept.size > 0;
export const isComplete = () => [...shown].every((address) => kept.get(address)?.complete === 1);
export const isBusy = () => underway.size > 0 || queue.length > 0;

export function bitmapOf(address) {
  const tile = kept.get(address);
  if (tile) {
    kept.delete(address);
    kept.set(address, tile);
  }
  return tile?.bitmap;
}

// The tiles needed now, most important first; requests for all others are aborted.
export function requestTiles(addresses) {
  const set = new Set(addresses);
  for (const [address, controller] of underway) if (!set.has(address)) controller.abort();
  queue = addresses.filter((address) => !kept.has(address) && !underway.has(address) && (failed.get(address) ?? 0) < MOST_TRIES);
  pump();
}

function pump() {
  while (underway.size < AT_ONCE && queue.length) fetchTile(queue.shift());
}

async function fetchTile(address) {
  const controller = new AbortController();
  underway.set(address, controller);
  try {
    const tile = await picture(address, controller.signal);
    kept.get(address)?.bitmap.close();
    kept.delete(address);
    kept.set(address, tile);
    if (tile.complete < 1) setTimeout(() => refresh(address), AGAIN_MS);
    while (kept.size > MOST_KEPT) {
      const [oldest, { bitmap }] = kept.entries().next().value;
      bitmap.close();
      kept.delete(oldest);
    }
  } catch (error) {
    if (error.name !== "AbortError") failLater(address, error);
  } finally {
    underway.delete(address);
    changed();
    pump();
  }
}

function failLater(address, error) {
  const tries = (failed.get(address) ?? 0) + (error.status === 503 || !error.status ? 1 : MOST_TRIES);
  failed.set(address, tries);
  if (tries >= MOST_TRIES) reportError(error);
  else setTimeout(changed, AGAIN_MS * 2 ** tries);
}

// The server had only a part of this tile: request it again while it is visible.
function refresh(address) {
  if (kept.has(address) && kept.get(address).complete < 1 && !underway.has(address) && stillShown(address)) fetchTile(address);
}

let shown = new Set();
export function showing(addresses) {
  shown = new Set(addresses);
}
const stillShown = (address) => shown.has(address);

export function clearFailures() {
  failed.clear();
}
