// What is drawn over the map: pinned pixels, regions, the cross for people who use the keyboard.
import { state } from "./store.js";

export const PALETTE = ["#e69f00", "#56b4e9", "#00b386", "#ff7043", "#d58bbd", "#3f8fd6", "#f0e442", "#c3c9cc"];

export const marks = { cross: false, path: null };

export function paintMarks(context, view) {
  context.save();
  context.scale(devicePixelRatio, devicePixelRatio);
  for (const pin of state.pins)
    pin.corners ? paintRegion(context, view, pin.corners, PALETTE[pin.colour], true) : paintPin(context, view, pin);
  // While drawing with keys, the line continues to the cross.
  const towards = marks.cross ? [[view.y - 0.5, view.x - 0.5]] : [];
  if (marks.path) paintRegion(context, view, [...marks.path, ...towards], "#ffffff", false);
  if (marks.cross) paintCross(context, view);
  context.restore();
}

// Pixel positions count from the centre of the first pixel; the grid counts from its edge.
const onScreen = (view, row, column) => view.toScreen(column + 0.5, row + 0.5);

function paintPin(context, view, pin) {
  const { left, top } = onScreen(view, pin.row, pin.column);
  const half = Math.max(4, view.zoom / 2);
  context.lineWidth = 4;
  context.strokeStyle = "#000b";
  context.strokeRect(left - half, top - half, 2 * half, 2 * half);
  context.lineWidth = 2;
  context.strokeStyle = PALETTE[pin.colour];
  context.strokeRect(left - half, top - half, 2 * half, 2 * half);
  label(context, String(pin.number), left + half + 4, top - half, PALETTE[pin.colour]);
}

function paintRegion(context, view, corners, colour, closed) {
  context.beginPath();
  for (const [row, column] of corners) {
    const { left, top } = onScreen(view, row, column);
    context.lineTo(left, top);
  }
  if (closed) context.closePath();
  context.lineWidth = 4;
  context.strokeStyle = "#000b";
  context.stroke();
  context.lineWidth = 2;
  context.strokeStyle = colour;
  context.stroke();
}

function label(context, text, left, top, colour) {
  context.font = "600 12px system-ui, sans-serif";
  const width = context.measureText(text).width + 8;
  context.fillStyle = "#0b1013d9";
  context.fillRect(left, top - 2, width, 16);
  context.fillStyle = colour;
  context.fillText(text, left + 4, top + 10);
}

function paintCross(context, view) {
  const x = view.width / 2,
    y = view.height / 2;
  for (const [colour, width] of [
    ["#000b", 4],
    ["#fff", 1.5],
  ]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(x - 14, y);
    context.lineTo(x - 4, y);
    context.moveTo(x + 4, y);
    context.lineTo(x + 14, y);
    context.moveTo(x, y - 14);
    context.lineTo(x, y - 4);
    context.moveTo(x, y + 4);
    context.lineTo(x, y + 14);
    context.stroke();
  }
}
