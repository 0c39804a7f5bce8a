// All keys, in one place: the list that is shown is the list that works.
import { button, find, isTyping, make, replace } from "./dom.js";

export function startHelp(keys, startTour) {
  const dialog = find("help");
  const open = () => dialog.showModal();
  const described = [
    ...keys,
    { keys: ["← ↑ → ↓"], caption: "Move the map, when it has the focus; with Shift in small steps" },
    { keys: ["Enter"], caption: "Spectrum at the middle of the map, or a corner of the region" },
    { keys: ["?"], caption: "This list" },
  ];
  replace(
    dialog,
    make("h2", { id: "help-title" }, "Keys and gestures"),
    make(
      "dl",
      { className: "keys" },
      described.map(({ keys: names, caption }) =>
        make(
          "div",
          {},
          make(
            "dt",
            {},
            names
              .map((name) => make("kbd", {}, name === " " ? "Space" : name))
              .flatMap((one, index) => (index ? [" ", one] : [one])),
          ),
          make("dd", {}, caption),
        ),
      ),
    ),
    make(
      "p",
      { className: "note" },
      "Mouse: drag to move, wheel to zoom, click for a spectrum, Shift and click to keep it. Fingers: drag, pinch, tap.",
    ),
    make(
      "p",
      { className: "row" },
      button("Close", () => dialog.close(), { className: "primary" }),
      button("20-second tour", () => (dialog.close(), startTour()), { id: "tour-start" }),
    ),
  );
  find("help-open").addEventListener("click", open);
  const byKey = new Map(keys.flatMap((one) => one.keys.map((name) => [name.toLowerCase(), one])));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target) || dialog.open) return;
    if (event.key === "?") return open();
    // Space presses buttons; elsewhere it shows the other layer.
    if (event.key === " " && event.target.matches("button, input, summary, a")) return;
    const one = byKey.get(event.key.toLowerCase());
    if (one) {
      event.preventDefault();
      one.run(event.key);
    }
  });
  document.addEventListener("keyup", (event) => byKey.get(event.key.toLowerCase())?.release?.());
}
