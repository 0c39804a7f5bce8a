// The state of the page, and the events that announce its changes.

export const state = {
  scene: { number: 0, images: [], maps: [] },
  layers: { a: null, b: null },
  compare: "one",
  split: 0.5,
  showsB: false,
  rendering: { style: "true", bands: [0, 0, 0], band: 0, index: "NDVI", colours: "viridis", low: 2, high: 98, linked: true },
  pins: [],
  drawing: false,
};

const listeners = new Map();

export function on(event, listener) {
  if (!listeners.has(event)) listeners.set(event, []);
  listeners.get(event).push(listener);
}

export function emit(event, detail) {
  for (const listener of listeners.get(event) ?? []) listener(detail);
}

export const image = (role) => state.scene.images.find((one) => one.role === role);
export const lead = () => image(state.scene.lead);
export const titleOf = (layer) => image(layer)?.title ?? state.scene.maps.find((map) => map.name === layer)?.title ?? layer;
export const isMap = (layer) => state.scene.maps.some((map) => map.name === layer);

// The rendering as the server reads it. Of a map only colours and percentiles can be chosen.
export function renderingQuery(layer) {
  const { style, bands, band, index, colours, low, high, linked } = state.rendering;
  const query = new URLSearchParams({ colours, low, high });
  if (!isMap(layer)) {
    query.set("style", style);
    query.set("linked", linked);
    if (style === "bands") for (const each of bands) query.append("bands", each);
    if (style === "band") query.set("bands", band);
    if (style === "index") query.set("index", index);
  }
  return query.toString();
}

export function bandLabel(one, band) {
  const wavelength = one.wavelength_nm[band];
  if (wavelength !== null) return `${wavelength.toFixed(0)} nm`;
  return one.band_name[band] || `band ${band + 1}`;
}
