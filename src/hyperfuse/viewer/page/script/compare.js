// Which two layers are on the map, and how: only the first, side by side at a line, or in turns.
import { find, make, replace } from "./dom.js";
import { redraw } from "./map.js";
import { emit, on, state, titleOf } from "./store.js";

const BLINK_MS = 800;
// Images that are shown as maps only.
const ONLY_MAPS = ["uncertainty", "change_mask"];
let ticking = null;

export function fillLayers() {
  const { images, maps } = state.scene;
  const shown = images.filter((one) => !ONLY_MAPS.includes(one.role));
  const offered = maps.filter((map) => !map.unavailable);
  for (const side of ["a", "b"]) {
    const select = find(`layer-${side}`);
    const group = (label, options) => (options.length ? make("optgroup", { label }, options) : null);
    replace(
      select,
      group(
        "Images",
        shown.map((one) => make("option", { value: one.role }, one.title)),
      ),
      group(
        "Maps",
        offered.map((map) => make("option", { value: map.name }, map.title)),
      ),
    );
    select.disabled = !shown.length;
  }
  const known = [...shown.map((one) => one.role), ...offered.map((map) => map.name)];
  if (!known.includes(state.layers.a)) state.layers.a = known.includes(state.scene.lead) ? state.scene.lead : (known[0] ?? null);
  if (!known.includes(state.layers.b) || state.layers.b === state.layers.a)
    state.layers.b =
      ["hsi", "msi", "reference", ...known].find((name) => known.includes(name) && name !== state.layers.a) ?? state.layers.a;
  update();
}

export function setLayer(side, name) {
  state.layers[side] = name;
  update();
  emit("layers");
}

export function swap() {
  [state.layers.a, state.layers.b] = [state.layers.b, state.layers.a];
  update();
  emit("layers");
}

export function setCompare(way) {
  state.compare = way;
  state.showsB = false;
  clearInterval(ticking);
  ticking =
    way === "blink"
      ? setInterval(() => {
          state.showsB = !state.showsB;
          badges();
          redraw();
        }, BLINK_MS)
      : null;
  update();
  emit("compare");
}

// While a key is held: show B.
export function peek(atB) {
  if (state.compare !== "one" || !state.layers.b || state.showsB === atB) return;
  state.showsB = atB;
  badges();
  redraw();
  emit("peek");
}

export function moveSplit(split) {
  state.split = Math.min(1, Math.max(0, split));
  const divider = find("divider");
  divider.style.left = `${100 * state.split}%`;
  divider.setAttribute("aria-valuenow", Math.round(100 * state.split));
  redraw();
}

function update() {
  for (const side of ["a", "b"]) find(`layer-${side}`).value = state.layers[side] ?? "";
  for (const button of find("compare").children) {
    const chosen = button.dataset.compare === state.compare;
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  find("divider").hidden = state.compare !== "swipe" || !state.scene.number;
  moveSplit(state.split);
  badges();
}

function badges() {
  const { a, b } = state.layers;
  const left = state.compare !== "swipe" && state.showsB ? b : a;
  find("badge-a").hidden = !state.scene.number || !left;
  find("badge-a").textContent = left ? titleOf(left) : "";
  find("badge-b").hidden = state.compare !== "swipe" || !b;
  find("badge-b").textContent = b ? titleOf(b) : "";
  const seen = state.compare === "one" ? titleOf(a ?? "") : `${titleOf(a ?? "")} and ${titleOf(b ?? "")}`;
  find("canvas").setAttribute("aria-label", a ? `Map of the scene, showing ${seen}` : "Map, nothing is open");
}

export function layerByNumber(index) {
  const options = [...find("layer-a").options];
  if (options[index]) setLayer("a", options[index].value);
}

export function startCompare() {
  for (const side of ["a", "b"]) find(`layer-${side}`).addEventListener("change", (event) => setLayer(side, event.target.value));
  find("swap").addEventListener("click", swap);
  const group = find("compare");
  group.addEventListener("click", (event) => event.target.dataset.compare && setCompare(event.target.dataset.compare));
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...group.children];
    const next = buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length];
    setCompare(next.dataset.compare);
    next.focus();
    event.preventDefault();
  });
  const divider = find("divider");
  divider.addEventListener("pointerdown", (event) => divider.setPointerCapture(event.pointerId));
  divider.addEventListener("pointermove", (event) => {
    if (!divider.hasPointerCapture(event.pointerId)) return;
    const box = find("map").getBoundingClientRect();
    moveSplit((event.clientX - box.left) / box.width);
  });
  divider.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.02, ArrowRight: 0.02, PageDown: -0.1, PageUp: 0.1 }[event.key];
    if (step) {
      moveSplit(state.split + step);
      event.preventDefault();
    }
    if (event.key === "Home" || event.key === "End") {
      moveSplit(event.key === "End" ? 1 : 0);
      event.preventDefault();
    }
  });
  on("scene", fillLayers);
}
