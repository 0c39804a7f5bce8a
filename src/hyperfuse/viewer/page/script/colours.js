// The panel that sets how the images are rendered.
import { find, make, replace } from "./dom.js";
import { bandLabel, emit, lead, on, state } from "./store.js";

const STYLES = {
  true: "True colour",
  infrared: "Colour infrared",
  bands: "Three bands",
  band: "One band",
  pca: "Principal components",
  index: "Index",
};
const COLOUR_NAMES = { viridis: "Viridis", cividis: "Cividis", magma: "Magma", grey: "Grey", "blue-orange": "Orange to purple" };
const CHANNELS = [
  ["Red", "#e5484d"],
  ["Green", "#30a46c"],
  ["Blue", "#3e63dd"],
];

function change(part) {
  Object.assign(state.rendering, part);
  emit("rendering");
}

export function setStyle(style) {
  const offered = document.querySelector(`input[name="style"][value="${style}"]`);
  if (offered && !offered.disabled) {
    offered.checked = true;
    change({ style });
    render();
  }
}

export function render() {
  const panel = find("panel-colours");
  if (!state.scene.number) return replace(panel, make("p", { className: "note" }, "Open an image to choose its colours."));
  replace(panel, styles(), choices(), stretch(), notes());
}

function styles() {
  const { styles: bandsOf, indices } = state.scene;
  const missing = { infrared: !bandsOf.infrared, index: !indices.length, bands: lead().bands < 2, pca: lead().bands < 3 };
  const option = ([style, title]) =>
    make(
      "label",
      { title: missing[style] ? "The image has no bands for this" : "" },
      make("input", {
        type: "radio",
        name: "style",
        value: style,
        checked: state.rendering.style === style,
        disabled: Boolean(missing[style]),
        on: {
          change: () => {
            change({ style });
            render();
            document.querySelector(`input[name="style"][value="${style}"]`).focus();
          },
        },
      }),
      title,
    );
  return make(
    "div",
    { className: "group" },
    make("h3", { id: "style-title" }, "Show"),
    make("div", { className: "options", role: "radiogroup", "aria-labelledby": "style-title" }, Object.entries(STYLES).map(option)),
  );
}

function choices() {
  const { style } = state.rendering;
  const parts = [];
  if (style === "bands")
    parts.push(
      ...CHANNELS.map(([name, colour], channel) =>
        bandSlider(name, colour, state.rendering.bands[channel], (band) => {
          const bands = [...state.rendering.bands];
          bands[channel] = band;
          change({ bands });
        }),
      ),
    );
  if (style === "band") parts.push(bandSlider("Band", null, state.rendering.band, (band) => change({ band })));
  if (style === "index") parts.push(indexChoice());
  if (style === "true" || style === "infrared") parts.push(usedBands(state.scene.styles[style]));
  if (style === "pca")
    parts.push(
      make("p", { className: "note" }, "The three directions in which the spectra vary most, from a sample of the whole image."),
    );
  parts.push(colourMap(style === "band" || style === "index" ? "Colour map" : "Colours of maps"));
  return make("div", { className: "group" }, parts);
}

function usedBands(bands) {
  return make(
    "p",
    { className: "note" },
    "Red, green, blue: ",
    bands.map((band) => bandLabel(lead(), band)).join(", "),
    ". Other images show their nearest bands.",
  );
}

function bandSlider(name, colour, band, changed) {
  const one = lead();
  const caption = (index) => `${index + 1} · ${bandLabel(one, index)}${one.good[index] ? "" : " ⚠"}`;
  const output = make("output", {}, caption(band));
  const dot = colour ? make("span", { className: "dot" }) : null;
  if (dot) dot.style.background = colour;
  const slider = make("input", {
    type: "range",
    min: 0,
    max: one.bands - 1,
    step: 1,
    value: band,
    "aria-label": `${name} band`,
    "aria-valuetext": caption(band),
    on: {
      input: () => {
        const chosen = Number(slider.value);
        output.textContent = caption(chosen);
        slider.setAttribute("aria-valuetext", caption(chosen));
        changed(chosen);
      },
    },
  });
  return make("div", { className: "band" }, make("span", { className: "name" }, dot, name), slider, output);
}

function indexChoice() {
  const chosen = state.scene.indices.find((one) => one.name === state.rendering.index) ?? state.scene.indices[0];
  const caption = make("p", { className: "note" }, `${chosen.meaning} (${chosen.reference})`);
  return make(
    "div",
    { className: "field" },
    make("span", { id: "index-label" }, "Index"),
    make(
      "select",
      {
        "aria-labelledby": "index-label",
        on: {
          change: (event) => {
            const now = state.scene.indices.find((one) => one.name === event.target.value);
            caption.textContent = `${now.meaning} (${now.reference})`;
            change({ index: now.name });
          },
        },
      },
      state.scene.indices.map((one) =>
        make("option", { value: one.name, selected: one.name === chosen.name }, `${one.name} – ${one.meaning}`),
      ),
    ),
    caption,
  );
}

function colourMap(title) {
  return make(
    "label",
    { className: "field" },
    make("span", {}, title),
    make(
      "select",
      { on: { change: (event) => change({ colours: event.target.value }) } },
      state.scene.colour_maps.map((name) =>
        make("option", { value: name, selected: name === state.rendering.colours }, COLOUR_NAMES[name] ?? name),
      ),
    ),
  );
}

function stretch() {
  const percent = (name, title, low, high) =>
    make(
      "label",
      { className: "field" },
      make("span", {}, title),
      make("input", {
        type: "number",
        min: low,
        max: high,
        step: 0.5,
        value: state.rendering[name],
        on: {
          change: (event) => {
            const value = Math.min(high, Math.max(low, Number(event.target.value)));
            if (Number.isFinite(value)) {
              event.target.value = value;
              change({ [name]: value });
            }
          },
        },
      }),
    );
  return make(
    "div",
    { className: "group" },
    make("h3", {}, "Stretch"),
    make(
      "div",
      { className: "percent" },
      percent("low", "Dark below percentile", 0, 49),
      percent("high", "Bright above percentile", 51, 100),
    ),
    make(
      "label",
      { className: "check" },
      make("input", {
        type: "checkbox",
        checked: state.rendering.linked,
        on: { change: (event) => change({ linked: event.target.checked }) },
      }),
      "Same stretch for all images",
    ),
    make("p", { className: "note" }, "Images in other units always get a stretch of their own."),
  );
}

function notes() {
  if (!state.scene.notes.length) return null;
  return make(
    "div",
    { className: "group" },
    state.scene.notes.map((note) => make("p", { className: "warn" }, note)),
  );
}

export function startColours() {
  on("scene", () => {
    if (state.scene.number) {
      const { styles: bandsOf, indices } = state.scene;
      const inside = (band) => band < lead().bands;
      if (!state.rendering.bands.every(inside) || new Set(state.rendering.bands).size === 1)
        state.rendering.bands = [...(bandsOf.infrared ?? bandsOf.true)];
      if (!inside(state.rendering.band)) state.rendering.band = 0;
      if (!indices.some((one) => one.name === state.rendering.index)) state.rendering.index = indices[0]?.name ?? "NDVI";
      const lost = (state.rendering.style === "infrared" && !bandsOf.infrared) || (state.rendering.style === "index" && !indices.length);
      if (lost) state.rendering.style = "true";
    }
    render();
  });
}
