// What a file holds, as text.
import { number } from "./dom.js";

export const bands = (count) => `${count} band${count === 1 ? "" : "s"}`;

function range(values) {
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)].map((value) => number(value, 5));
  if (!known.length) return "unknown";
  return low === high ? `${low} nm` : `${low} to ${high} nm`;
}

const pixel = (about) => (about.transform ? about.pixel_size.map((size) => number(size)).join(" × ") : "no georeference");

function values(about) {
  if (about.sampled_minimum === null) return "only nodata (sampled)";
  return `${number(about.sampled_minimum)} to ${number(about.sampled_maximum)} (sampled)`;
}

// Everything, as rows of a table.
export function allFacts(about) {
  const bad = about.good.filter((good) => !good).length;
  return [
    ["Size", `${bands(about.bands)}, ${about.height} × ${about.width} pixels`],
    ["Type", about.dtype],
    ["Wavelengths", range(about.wavelength_nm)],
    ["FWHM", range(about.fwhm_nm)],
    ["Bad bands", bad ? String(bad) : "none"],
    ["CRS", about.crs ?? "none"],
    ["Pixel", pixel(about)],
    ["Nodata", about.nodata ?? "none"],
    ["Values", values(about)],
    ...Object.entries(about.found),
    ...Object.entries(about.attributes),
  ];
}

// The most important, in four lines.
export function fewFacts(about) {
  return [
    `${bands(about.bands)}, ${about.height} × ${about.width} pixels`,
    `${range(about.wavelength_nm)}, ${about.dtype}`,
    about.transform ? `pixel ${pixel(about)}, ${about.crs ?? "no CRS"}` : pixel(about),
    about.found.product ?? `values ${values(about)}`,
  ];
}
