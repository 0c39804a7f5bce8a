// A guided tour of 20 seconds: five stops, each of which does what it talks about.
import { setCompare } from "./compare.js";
import { button, find, make, replace } from "./dom.js";
import { pick } from "./gestures.js";
import { view } from "./map.js";
import { notify } from "./messages.js";
import { state } from "./store.js";
import { showTab } from "./tabs.js";

const SECONDS_PER_STOP = 4;
const SEEN = "hyperfuse-tour";

const STOPS = [
  { at: "map", text: "This is the map. Drag it to move, turn the wheel or pinch to zoom." },
  { at: "compare", text: "Swipe compares two layers: A at the left of the line, B at the right.", act: () => setCompare("swipe") },
  { at: "layers", text: "Choose what is compared: the images, or maps of differences, consistency and uncertainty." },
  {
    at: "panel-spectra",
    text: "Click a pixel to see its spectrum in every image. Bad bands are grey gaps.",
    act: () => pick({ row: view.y - 0.5, column: view.x - 0.5 }, false),
  },
  { at: "tabs", text: "Scores says how good the result is, Fuse makes another one. The question mark lists all keys.", act: () => showTab("scores") },
];

let end = () => {};
let closeOffer = () => {};

export function startTour() {
  end();
  closeOffer();
  if (!state.scene.number) return;
  const before = state.compare;
  const box = make("div", { className: "tour", id: "tour", role: "dialog", "aria-label": "Tour" });
  let stop = -1;
  let timer = null;
  end = () => {
    clearTimeout(timer);
    box.remove();
    document.querySelector(".toured")?.classList.remove("toured");
    setCompare(before);
    end = () => {};
  };
  const next = () => {
    clearTimeout(timer);
    document.querySelector(".toured")?.classList.remove("toured");
    stop += 1;
    if (stop === STOPS.length) return end();
    const { at, text, act } = STOPS[stop];
    act?.();
    find(at).classList.add("toured");
    replace(
      box,
      make("p", { "aria-live": "polite" }, text),
      make(
        "div",
        { className: "row spread" },
        make("span", { className: "note" }, `${stop + 1} of ${STOPS.length}`),
        button(stop + 1 < STOPS.length ? "Next" : "Done", next, { className: "primary" }),
        button("End the tour", () => end(), { className: "quiet" }),
      ),
    );
    box.querySelector(".primary").focus();
    timer = setTimeout(next, SECONDS_PER_STOP * 1000);
  };
  box.addEventListener("keydown", (event) => event.key === "Escape" && end());
  // Who reads slowly stops the clock by pointing at the text.
  box.addEventListener("pointerenter", () => clearTimeout(timer));
  document.body.append(box);
  next();
}

// Once in each browser.
export function offerTour() {
  if (localStorage.getItem(SEEN)) return;
  closeOffer = notify("New here?", "", 10, { label: "20-second tour", run: startTour });
  localStorage.setItem(SEEN, "yes");
}
