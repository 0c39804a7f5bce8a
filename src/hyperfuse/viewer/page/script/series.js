// From spectra, as the server gives them, to lines: ordered by wavelength, broken at bad bands and where bands are missing.
import { image, lead, state } from "./store.js";

const GAP = 3.5; // usual steps between bands
export const STYLES = { fused: { dash: [], thick: 2 }, hsi: { dash: [7, 4] }, reference: { dash: [2, 3] }, msi: { marks: "only" } };

export const knowsWavelengths = (one) => one.wavelength_nm.every((value) => value !== null);

// Wavelengths where the leading image has them, else band numbers.
export function axis() {
  return knowsWavelengths(lead()) ? { label: "wavelength (nm)", isWavelength: true } : { label: "band", isWavelength: false };
}

export function positions(one) {
  if (axis().isWavelength) return knowsWavelengths(one) ? one.wavelength_nm : null;
  return one.bands === lead().bands ? one.wavelength_nm.map((_, band) => band + 1) : null;
}

// Bands in the order of the axis, and the usual step between them.
function ordered(along) {
  const order = along.map((_, band) => band).sort((first, second) => along[first] - along[second]);
  const steps = order
    .slice(1)
    .map((band, index) => along[band] - along[order[index]])
    .filter((step) => step > 0)
    .sort((first, second) => first - second);
  return { order, usual: steps[Math.floor(steps.length / 2)] ?? Infinity };
}

// A line through the values of an image's bands, broken at bad bands and where bands are missing.
export function lineOf(one, along, values, spread = null) {
  const { order, usual } = ordered(along);
  const line = { x: [], y: [], bands: [], spread: spread ? [] : null, widths: [] };
  const add = (x, y, band) => {
    line.x.push(x);
    line.y.push(y);
    line.bands.push(band);
    line.widths.push(band === null ? 0 : one.fwhm_nm[band]);
    if (spread) line.spread.push(band === null ? 0 : spread[band]);
  };
  order.forEach((band, index) => {
    const before = order[index - 1];
    if (index && one.role !== "msi" && along[band] - along[before] > GAP * usual) add((along[band] + along[before]) / 2, null, null);
    add(along[band], one.good[band] ? values[band] : null, band);
  });
  return line;
}

export function seriesOf(pin, colour, hidden) {
  const lines = [];
  for (const spectrum of pin.spectra) {
    const { role } = spectrum;
    const one = image(role);
    const along = one && STYLES[role] && positions(one);
    if (!along || hidden.has(role)) continue;
    lines.push({ ...lineOf(one, along, spectrum.mean, spreadOf(pin, spectrum)), role, place: pin.number, colour, ...STYLES[role] });
  }
  return lines;
}

// The leading image of a region spreads by its deviation; a fused pixel by its uncertainty, where there is one band by band.
function spreadOf(pin, spectrum) {
  if (pin.corners) return spectrum.role === state.scene.lead ? spectrum.deviation : null;
  const sure = pin.spectra.find((one) => one.role === "uncertainty");
  return spectrum.role === "fused" && sure && sure.mean.length === spectrum.mean.length ? sure.mean : null;
}

// Stretches of the axis that are grey: bad bands of the leading image, and holes between its bands.
export function shaded() {
  const one = lead(),
    along = positions(one);
  if (!along) return [];
  const { order, usual } = ordered(along);
  const stretches = [];
  order.forEach((band, index) => {
    if (!one.good[band]) stretches.push([along[band] - usual / 2, along[band] + usual / 2]);
    if (index && along[band] - along[order[index - 1]] > GAP * usual)
      stretches.push([along[order[index - 1]] + usual / 2, along[band] - usual / 2]);
  });
  return stretches;
}

const cell = (value) => {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

// One line per pixel or region, image and band.
export function csv() {
  const head = ["place", "image", "file", "row", "column", "pixels", "band", "wavelength_nm", "good", "value", "deviation"];
  const lines = [head];
  for (const pin of state.pins)
    for (const { role, row, column, pixels, mean, deviation } of pin.spectra) {
      const one = image(role);
      if (!one) continue;
      mean.forEach((value, band) =>
        lines.push([
          pin.title,
          role,
          one.file,
          row + 1,
          column + 1,
          pixels,
          band + 1,
          one.wavelength_nm[band],
          one.good[band] ? 1 : 0,
          value,
          pin.corners ? deviation[band] : "",
        ]),
      );
    }
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}
