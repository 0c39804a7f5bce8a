// Starts everything.
import { get } from "./api.js";
import { setStyle, startColours } from "./colours.js";
import { layerByNumber, moveSplit, peek, setCompare, startCompare, swap } from "./compare.js";
import { find } from "./dom.js";
import { startFiles } from "./files.js";
import { startFusing } from "./fuse.js";
import { startGestures } from "./gestures.js";
import { startHelp } from "./help.js";
import { startLegend } from "./legend.js";
import { redraw, savePicture, startMap, view } from "./map.js";
import { notify, showError } from "./messages.js";
import { startScores } from "./scores.js";
import { clearPins, pinLast, setDrawing } from "./pins.js";
import { startSpectra } from "./spectra.js";
import { emit, on, state } from "./store.js";
import { showTab, startTabs } from "./tabs.js";
import { startTheme, toggleTheme } from "./theme.js";
import { offerTour, startTour } from "./tour.js";

const zoom = (factor) => () => {
  view.zoomAt(factor);
  redraw();
};

const KEYS = [
  { keys: ["+", "="], caption: "Zoom in", run: zoom(1.4) },
  { keys: ["-"], caption: "Zoom out", run: zoom(1 / 1.4) },
  {
    keys: ["0"],
    caption: "Show the whole scene",
    run: () => {
      view.fit();
      redraw();
    },
  },
  { keys: ["1", "2", "3", "4", "5"], caption: "Show the first, second, … layer as A", run: (key) => layerByNumber(Number(key) - 1) },
  { keys: ["X"], caption: "Exchange A and B", run: swap },
  { keys: ["O"], caption: "Only A", run: () => setCompare("one") },
  { keys: ["S"], caption: "Swipe between A and B", run: () => setCompare("swipe") },
  { keys: ["B"], caption: "Blink between A and B", run: () => setCompare("blink") },
  { keys: [" "], caption: "Hold: show B", run: () => peek(true), release: () => peek(false) },
  { keys: ["[", "]"], caption: "Move the line of the swipe", run: (key) => moveSplit(state.split + (key === "[" ? -0.05 : 0.05)) },
  { keys: ["C"], caption: "True colour", run: () => setStyle("true") },
  { keys: ["I"], caption: "Colour infrared", run: () => setStyle("infrared") },
  { keys: ["R"], caption: "Draw a region", run: () => setDrawing(!state.drawing, true) },
  { keys: ["P"], caption: "Keep the last spectrum", run: pinLast },
  { keys: ["Delete"], caption: "Remove all spectra", run: clearPins },
  { keys: ["T"], caption: "Dark or light", run: toggleTheme },
  { keys: ["Escape"], caption: "Stop drawing", run: () => state.drawing && setDrawing(false) },
];

function show(scene) {
  const jobs = scene.jobs ?? [];
  state.scene = { maps: [], notes: [], levels: 0, tile: 256, jobs, ...scene };
  find("empty").hidden = Boolean(scene.number);
  document.title = scene.number ? `${scene.images.find((one) => one.role === scene.lead).file} – hyperfuse` : "hyperfuse";
  emit("scene");
  const slow = scene.images.find((one) => one.offers_overviews);
  const offer = { label: "What can be done", run: () => showTab("files", true) };
  if (slow) notify(`${slow.title} is large and has no overviews: it is slow when zoomed out`, "", 12, offer);
}

async function load() {
  try {
    show(await get("api/scene"));
  } catch (error) {
    showError(error);
  }
}

startTheme();
startTabs();
startMap();
startCompare();
startGestures();
startColours();
startLegend();
startSpectra();
startScores();
startFiles();
startFusing();
startHelp(KEYS, startTour);
on("opened", show);
on("reload", load);
on("stale", load);
find("save-picture").addEventListener("click", savePicture);
find("empty-fuse").addEventListener("click", () => showTab("fuse", true));
find("empty-open").addEventListener("click", () => showTab("files", true));
window.addEventListener("dragover", (event) => event.preventDefault());
window.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length && find("panel-fuse").hidden) {
    showTab("fuse");
    notify("Drop the files into the panel Fuse");
  }
});
await load();
if (!state.scene.number) showTab("fuse");
else if (state.scene.jobs.some((job) => job.kind === "fuse")) showTab("fuse");
else offerTour();
document.documentElement.dataset.ready = "yes";
