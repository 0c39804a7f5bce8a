// Places whose spectra are shown: pixels that were clicked, regions that were drawn.
import { get, post } from "./api.js";
import { find } from "./dom.js";
import { PALETTE } from "./marks.js";
import { notify, showError } from "./messages.js";
import { emit, on, state } from "./store.js";
import { showTab } from "./tabs.js";

let latest = 0;
let count = 0;
let closeHint = () => {};

async function pick({ row, column, keep }) {
  const mine = (latest += 1);
  try {
    const { spectra } = await get(`api/spectra/${state.scene.number}?row=${row}&column=${column}`);
    if (mine === latest || keep) add({ row, column, spectra, title: `row ${row + 1}, column ${column + 1}` }, keep);
  } catch (error) {
    showError(error);
  }
}

async function region(corners) {
  setDrawing(false);
  try {
    const { spectra } = await post(`api/regions/${state.scene.number}`, { corners });
    if (!spectra.length) return notify("The region holds no pixel", "bad");
    const first = spectra.find((one) => one.role === state.scene.lead) ?? spectra[0];
    add({ corners, spectra, title: `region of ${first.pixels} pixels${first.sampled ? " (sampled)" : ""}` }, true);
  } catch (error) {
    showError(error);
  }
}

function add(pin, keep) {
  // A pixel that was not pinned makes room for the next one.
  state.pins = state.pins.filter((other) => other.pinned);
  if (state.pins.length >= PALETTE.length) return notify(`At most ${PALETTE.length} places: remove one first`, "bad");
  const used = new Set(state.pins.map((other) => other.colour));
  const colour = PALETTE.findIndex((_, index) => !used.has(index));
  count += 1;
  state.pins.push({ ...pin, colour, number: count, pinned: Boolean(keep) });
  showTab("spectra");
  emit("pins");
}

export function setPinned(pin, pinned) {
  pin.pinned = pinned;
  emit("pins");
}

export function pinLast() {
  const last = state.pins.find((pin) => !pin.pinned);
  if (last) setPinned(last, true);
}

export function removePin(pin) {
  state.pins = state.pins.filter((other) => other !== pin);
  emit("pins");
}

export function clearPins() {
  state.pins = [];
  count = 0;
  emit("pins");
}

export function setDrawing(drawing, byKey = false) {
  state.drawing = drawing;
  find("draw-region")?.setAttribute("aria-pressed", drawing);
  closeHint();
  const hint = byKey
    ? "Move the cross with the arrow keys (with Shift in small steps); Enter sets a corner, Backspace takes it back, Shift and Enter closes the region"
    : "Draw around a region on the map";
  if (drawing) closeHint = notify(hint, "", 0);
  emit("drawing", drawing && byKey);
}

export function startPins() {
  on("pick", pick);
  on("region", region);
  on("scene", clearPins);
}
