// The spectra of all places as one plot, on the page and on paper.
import { make, number, save } from "./dom.js";
import { PALETTE } from "./marks.js";
import { PAPER, Plot } from "./plot.js";
import { axis, seriesOf, shaded, STYLES } from "./series.js";
import { state, titleOf } from "./store.js";

const MOST_READ = 8;
const NEAR = 1 / 30; // of the axis: what is farther from the pointer is not read
export const hidden = new Set();

const lines = () => state.pins.flatMap((pin) => seriesOf(pin, PALETTE[pin.colour], hidden));
const options = () => ({ series: lines(), shaded: shaded(), xLabel: axis().label, zero: true });

export class SpectraPlot {
  constructor(description) {
    const on = { pointermove: (event) => this.#hover(event), pointerleave: () => this.#hover(null) };
    this.canvas = make("canvas", { className: "plot", id: "plot", role: "img", "aria-label": description, on });
    this.reading = make("p", { className: "reading", "aria-live": "off" });
  }

  draw(hover = null) {
    if (!this.canvas.isConnected || !this.canvas.clientWidth) return;
    this.plot = new Plot(this.canvas);
    this.plot.draw({ ...options(), hover });
  }

  // The values under the pointer, as text.
  #hover(event) {
    this.reading.textContent = "";
    if (!event || !this.plot) return this.draw();
    const { x0, x1 } = this.plot.range;
    const x = this.plot.valueAt(event.clientX - this.canvas.getBoundingClientRect().left);
    const found = lines()
      .map((line) => ({ line, index: nearest(line, x) }))
      .filter(({ line, index }) => index >= 0 && Math.abs(line.x[index] - x) < NEAR * (x1 - x0));
    if (!found.length) return this.draw();
    const at = found[0].line.x[found[0].index];
    const place = (line) => (state.pins.length > 1 ? `${line.place} ` : "");
    const caption = found.map(({ line, index }) => `${place(line)}${titleOf(line.role)} ${number(line.y[index])}`);
    this.reading.textContent = `${axis().isWavelength ? `${number(at, 5)} nm` : `band ${at}`}: ${caption.slice(0, MOST_READ).join(", ")}`;
    this.draw(at);
  }
}

function nearest(line, x) {
  let best = -1;
  line.x.forEach((value, index) => {
    if (line.y[index] !== null && (best < 0 || Math.abs(value - x) < Math.abs(line.x[best] - x))) best = index;
  });
  return best;
}

// With a legend, since on paper there is no panel beside it.
export function savePlot() {
  const paper = make("canvas", { data: { ratio: 2, width: 900, height: 480 } });
  const { series, ...others } = options();
  const places = state.pins.map((pin) => ({ text: `${pin.number} ${pin.title}`, colour: PALETTE[pin.colour] }));
  const roles = [...new Set(series.map((line) => line.role))];
  const images = roles.map((role) => ({ text: titleOf(role), colour: PAPER.text, ...STYLES[role] }));
  new Plot(paper, PAPER).draw({ series, ...others, legend: [...places, ...images] });
  paper.toBlob((blob) => save(blob, "spectra.png"), "image/png");
}
