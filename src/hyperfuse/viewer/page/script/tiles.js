// Tiles: asked for while they are wanted, nearest to the middle first, kept while there is room.
import { picture } from "./api.js";
import { lookQuery, state } from "./store.js";

const MOST_KEPT = 420;
const AT_ONCE = 6;
const AGAIN_MS = 600;
const MOST_TRIES = 4;

const kept = new Map(); // url -> { bitmap, complete }
const underway = new Map(); // url -> AbortController
const failed = new Map(); // url -> tries
let wanted = [];
let changed = () => {};
let troubled = () => {};

export function listen(onChange, onTrouble) {
  changed = onChange;
  troubled = onTrouble;
}

export const source = (layer) => ({ base: `api/tiles/${state.scene.number}/${layer}/`, query: lookQuery(layer) });
export const url = (from, level, row, column) => `${from.base}${level}/${row}/${column}?${from.query}`;
export const hasAny = () => kept.size > 0;
export const isComplete = () => [...shown].every((address) => kept.get(address)?.complete === 1);
export const isBusy = () => underway.size > 0 || wanted.length > 0;

export function look(address) {
  const tile = kept.get(address);
  if (tile) {
    kept.delete(address);
    kept.set(address, tile);
  }
  return tile?.bitmap;
}

// The tiles that the picture needs now, most wanted first; all others that are still underway are given up.
export function want(addresses) {
  const set = new Set(addresses);
  for (const [address, controller] of underway) if (!set.has(address)) controller.abort();
  wanted = addresses.filter((address) => !kept.has(address) && !underway.has(address) && (failed.get(address) ?? 0) < MOST_TRIES);
  pump();
}

function pump() {
  while (underway.size < AT_ONCE && wanted.length) fetchTile(wanted.shift());
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
  if (tries >= MOST_TRIES) troubled(error);
  else setTimeout(changed, AGAIN_MS * 2 ** tries);
}

// The server had only a part of what this tile shows; ask again, but only while somebody looks at it.
function refresh(address) {
  if (kept.has(address) && kept.get(address).complete < 1 && !underway.has(address) && stillShown(address)) fetchTile(address);
}

let shown = new Set();
export function showing(addresses) {
  shown = new Set(addresses);
}
const stillShown = (address) => shown.has(address);

export function forgetFailures() {
  failed.clear();
}
