// Lines over wavelengths on a canvas, with axes; also what is saved as a picture.

const MARGIN = { left: 52, right: 12, top: 12, bottom: 36 };

export function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return {
    ground: value("--ground"),
    text: value("--text"),
    faint: value("--faint"),
    line: value("--line"),
    hole: value("--shade"),
  };
}

export const PAPER = { ground: "#ffffff", text: "#16222a", faint: "#51636c", line: "#d3dbdf", hole: "#e2e7ea" };

export function ticks(low, high, about) {
  const raw = (high - low) / about,
    power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((nice) => nice * power).find((nice) => nice >= raw) ?? power;
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step)
    values.push(Number(value.toPrecision(12)));
  return values;
}

// series: { x, y (null breaks the line), colour, dash, marks, spread }; shaded: [[from, to]]
export class Plot {
  constructor(canvas, colours = themeColours()) {
    this.canvas = canvas;
    this.colours = colours;
  }

  draw({ series, shaded = [], xLabel, hover = null, zero = false, legend = [] }) {
    const ratio = this.canvas.dataset.ratio ? Number(this.canvas.dataset.ratio) : devicePixelRatio;
    const width = this.canvas.dataset.width ? Number(this.canvas.dataset.width) : this.canvas.clientWidth;
    const height = this.canvas.dataset.height ? Number(this.canvas.dataset.height) : this.canvas.clientHeight;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.fillStyle = this.colours.ground;
    context.fillRect(0, 0, width, height);
    this.range = rangeOf(series, zero);
    this.box = {
      left: MARGIN.left,
      top: MARGIN.top,
      width: width - MARGIN.left - MARGIN.right,
      height: height - MARGIN.top - MARGIN.bottom,
    };
    this.#shade(context, shaded);
    this.#axes(context, xLabel, height);
    context.save();
    context.beginPath();
    context.rect(this.box.left, this.box.top - 4, this.box.width, this.box.height + 8);
    context.clip();
    for (const one of series) this.#spread(context, one);
    for (const one of series) this.#line(context, one);
    if (hover !== null) this.#hover(context, hover);
    context.restore();
    legend.forEach((entry, index) => this.#legend(context, entry, index));
  }

  px(x) {
    return this.box.left + ((x - this.range.x0) / (this.range.x1 - this.range.x0)) * this.box.width;
  }
  py(y) {
    return this.box.top + (1 - (y - this.range.y0) / (this.range.y1 - this.range.y0)) * this.box.height;
  }
  valueAt(left) {
    return this.range.x0 + ((left - this.box.left) / this.box.width) * (this.range.x1 - this.range.x0);
  }

  #shade(context, shaded) {
    context.fillStyle = this.colours.hole;
    for (const [from, to] of shaded) {
      const left = Math.max(this.box.left, this.px(from)),
        right = Math.min(this.box.left + this.box.width, this.px(to));
      if (right > left) context.fillRect(left, this.box.top, Math.max(2, right - left), this.box.height);
    }
  }

  #axes(context, xLabel, height) {
    const { left, top, width: w, height: h } = this.box;
    context.font = "11px system-ui, sans-serif";
    context.lineWidth = 1;
    context.textAlign = "center";
    for (const value of ticks(this.range.x0, this.range.x1, Math.max(2, w / 70))) {
      context.strokeStyle = this.colours.line;
      stroke(context, this.px(value), top, this.px(value), top + h);
      context.fillStyle = this.colours.faint;
      context.fillText(String(value), this.px(value), top + h + 14);
    }
    context.textAlign = "right";
    for (const value of ticks(this.range.y0, this.range.y1, Math.max(2, h / 42))) {
      context.strokeStyle = this.colours.line;
      stroke(context, left, this.py(value), left + w, this.py(value));
      context.fillStyle = this.colours.faint;
      context.fillText(short(value), left - 5, this.py(value) + 4);
    }
    context.fillStyle = this.colours.text;
    context.textAlign = "center";
    context.fillText(xLabel, left + w / 2, height - 6);
  }

  #spread(context, { x, y, spread, colour }) {
    if (!spread) return;
    context.fillStyle = colour;
    context.globalAlpha = 0.16;
    for (const [start, end] of pieces(y)) {
      context.beginPath();
      for (let index = start; index < end; index += 1) context.lineTo(this.px(x[index]), this.py(y[index] + (spread[index] ?? 0)));
      for (let index = end - 1; index >= start; index -= 1)
        context.lineTo(this.px(x[index]), this.py(y[index] - (spread[index] ?? 0)));
      context.fill();
    }
    context.globalAlpha = 1;
  }

  #line(context, { x, y, colour, dash = [], marks = null, widths = null, thick = 1.8 }) {
    context.strokeStyle = colour;
    context.fillStyle = colour;
    context.lineWidth = thick;
    context.setLineDash(dash);
    for (const [start, end] of marks === "only" ? [] : pieces(y)) {
      context.beginPath();
      for (let index = start; index < end; index += 1) context.lineTo(this.px(x[index]), this.py(y[index]));
      if (end - start === 1) context.arc(this.px(x[start]), this.py(y[start]), 1.5, 0, 7);
      context.stroke();
    }
    context.setLineDash([]);
    if (!marks) return;
    y.forEach((value, index) => {
      if (value === null) return;
      const left = this.px(x[index]),
        top = this.py(value);
      if (widths?.[index]) stroke(context, this.px(x[index] - widths[index] / 2), top, this.px(x[index] + widths[index] / 2), top);
      diamond(context, left, top);
    });
  }

  #legend(context, entry, index) {
    const top = this.box.top + 14 + 18 * index;
    const right = this.box.left + this.box.width - 10;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillStyle = this.colours.text;
    context.fillText(entry.text, right - 42, top + 4);
    stretchOfLine(context, entry, right - 34, top, 34);
  }

  #hover(context, x) {
    context.strokeStyle = this.colours.faint;
    context.setLineDash([3, 3]);
    stroke(context, this.px(x), this.box.top, this.px(x), this.box.top + this.box.height);
    context.setLineDash([]);
  }
}

// A piece of line as a legend shows it.
function stretchOfLine(context, { colour, dash = [], marks = null }, left, middle, length) {
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 2;
  if (marks) return diamond(context, left + length / 2, middle);
  context.setLineDash(dash);
  stroke(context, left, middle, left + length, middle);
  context.setLineDash([]);
}

export function drawSample(canvas, style) {
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  stretchOfLine(context, style, 0, canvas.height / 4, canvas.width / 2);
}

function diamond(context, left, top) {
  context.beginPath();
  context.moveTo(left, top - 5);
  context.lineTo(left + 5, top);
  context.lineTo(left, top + 5);
  context.lineTo(left - 5, top);
  context.fill();
}

const short = (value) => (Math.abs(value) >= 10000 ? value.toExponential(0) : String(Number(value.toPrecision(6))));

function stroke(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

// Runs of values without a null: [start, end).
function* pieces(y) {
  let start = null;
  for (let index = 0; index <= y.length; index += 1) {
    const there = index < y.length && y[index] !== null;
    if (there && start === null) start = index;
    if (!there && start !== null) {
      yield [start, index];
      start = null;
    }
  }
}

function rangeOf(series, zero) {
  const xs = series.flatMap((one) => one.x).filter((value) => value !== null);
  const ys = series.flatMap((one) =>
    one.y.flatMap((value, index) =>
      value === null ? [] : [value - (one.spread?.[index] ?? 0), value + (one.spread?.[index] ?? 0)],
    ),
  );
  const range = { x0: Math.min(...xs), x1: Math.max(...xs), y0: Math.min(...ys), y1: Math.max(...ys) };
  if (!xs.length) Object.assign(range, { x0: 0, x1: 1 });
  if (!ys.length) Object.assign(range, { y0: 0, y1: 1 });
  if (range.x0 === range.x1) {
    range.x0 -= 1;
    range.x1 += 1;
  }
  if (zero && range.y0 > 0) range.y0 = 0;
  const room = 0.06 * (range.y1 - range.y0) || Math.abs(range.y1) * 0.1 || 1;
  return { ...range, y0: range.y0 === 0 ? 0 : range.y0 - room, y1: range.y1 + room };
}
