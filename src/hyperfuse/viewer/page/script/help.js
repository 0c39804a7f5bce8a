// All keys, in one place: the list that is shown is the list that works.
import { find, isTyping, make, replace } from "./dom.js";

export function startHelp(keys) {
  const dialog = find("help");
  const open = () => dialog.showModal();
  const described = [
    ...keys,
    { keys: ["← ↑ → ↓"], caption: "Move the map, when it has the focus" },
    { keys: ["Enter"], caption: "Spectrum at the middle of the map" },
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
    make("p", {}, make("button", { type: "button", className: "primary", on: { click: () => dialog.close() } }, "Close")),
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
