// Fingers, mouse and keys on the map: pan, zoom, pinch, click, draw a region.
import { find } from "./dom.js";
import { marks } from "./marks.js";
import { redraw, view } from "./map.js";
import { emit, on, state } from "./store.js";

const STILL = 6; // screen pixels that a click may tremble
const STEP = 80;
const FINE_STEP = 8;
const canvas = find("canvas");
const pointers = new Map();
let travelled = 0;

const place = (event) => {
  const box = canvas.getBoundingClientRect();
  return { left: event.clientX - box.left, top: event.clientY - box.top };
};
// The page's pixel under a place on the screen, 0 is the centre of the first.
const pixel = ({ left, top }) => {
  const { x, y } = view.toGrid(left, top);
  return { row: y - 0.5, column: x - 0.5 };
};
const isInside = ({ row, column }) =>
  row >= -0.5 && column >= -0.5 && row < state.scene.height - 0.5 && column < state.scene.width - 0.5;

export function pick(at, keep) {
  if (state.scene.number && isInside(at)) emit("pick", { row: Math.round(at.row), column: Math.round(at.column), keep });
}

function down(event) {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, place(event));
  if (pointers.size === 1) {
    travelled = 0;
    if (state.drawing) marks.path = [];
  } else marks.path = null;
}

function moved(event) {
  const now = place(event),
    before = pointers.get(event.pointerId);
  hover(now);
  if (!before) return;
  const rightward = now.left - before.left,
    downward = now.top - before.top;
  travelled += Math.hypot(rightward, downward);
  if (pointers.size === 2) pinch(event.pointerId, now);
  else if (marks.path) {
    const at = pixel(now);
    marks.path.push([at.row, at.column]);
  } else if (travelled > STILL) {
    view.move(rightward, downward);
    canvas.classList.add("moving");
  }
  pointers.set(event.pointerId, now);
  redraw();
}

function pinch(moving, now) {
  const [other] = [...pointers].filter(([id]) => id !== moving).map(([, at]) => at);
  const before = pointers.get(moving);
  const distance = (one) => Math.hypot(one.left - other.left, one.top - other.top);
  const middle = { left: (now.left + other.left) / 2, top: (now.top + other.top) / 2 };
  view.move((now.left - before.left) / 2, (now.top - before.top) / 2);
  if (distance(before) > 1) view.zoomAt(distance(now) / distance(before), middle.left, middle.top);
}

function up(event) {
  if (!pointers.has(event.pointerId)) return;
  const alone = pointers.size === 1;
  pointers.delete(event.pointerId);
  canvas.classList.remove("moving");
  if (!alone) {
    travelled = Infinity;
    return;
  }
  if (marks.path) finishRegion();
  else if (event.type === "pointerup" && travelled <= STILL) pick(pixel(place(event)), event.shiftKey);
}

export function finishRegion() {
  const corners = marks.path ?? [];
  marks.path = null;
  redraw();
  if (corners.length >= 3) emit("region", thinned(corners));
}

// Corner by corner, at the cross in the middle of the map.
function drawByKey(event) {
  const corners = (marks.path ??= []);
  if (event.key === "Backspace") corners.pop();
  else if (event.shiftKey) return finishRegion();
  else corners.push([view.y - 0.5, view.x - 0.5]);
}

function thinned(corners) {
  const every = Math.ceil(corners.length / 400);
  return corners.filter((_, index) => index % every === 0);
}

function hover(at) {
  emit("hover", pixel(at));
}

function key(event) {
  const step = event.shiftKey ? FINE_STEP : STEP;
  const steps = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key in steps) view.move(...steps[event.key]);
  else if (state.drawing && ["Enter", "Backspace"].includes(event.key)) drawByKey(event);
  else if (event.key === "Enter") return pick({ row: view.y - 0.5, column: view.x - 0.5 }, event.shiftKey);
  else return;
  marks.cross = true;
  event.preventDefault();
  hover({ left: view.width / 2, top: view.height / 2 });
  redraw();
}

export function startGestures() {
  canvas.addEventListener("pointerdown", (event) => {
    marks.cross = false;
    down(event);
  });
  canvas.addEventListener("pointermove", moved);
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("keydown", key);
  canvas.addEventListener("focus", () => {
    marks.cross = canvas.matches(":focus-visible") && !pointers.size;
    redraw();
  });
  // Drawing that was started by a key continues with keys.
  on("drawing", (byKey) => {
    marks.path = null;
    if (byKey) canvas.focus({ focusVisible: true });
    marks.cross = byKey;
    redraw();
  });
  canvas.addEventListener("blur", () => {
    marks.cross = false;
    redraw();
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const { left, top } = place(event);
      const amount = event.deltaMode === 1 ? event.deltaY * 16 : event.deltaY;
      view.zoomAt(2 ** (-amount / 240), left, top);
      redraw();
    },
    { passive: false },
  );
  const zoom = (factor) => () => {
    view.zoomAt(factor);
    redraw();
  };
  find("zoom-in").addEventListener("click", zoom(1.6));
  find("zoom-out").addEventListener("click", zoom(1 / 1.6));
  find("zoom-fit").addEventListener("click", () => {
    view.fit();
    redraw();
  });
}
