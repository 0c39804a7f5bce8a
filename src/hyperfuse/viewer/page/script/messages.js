// Messages to the user; also read out by screen readers.
import { find, make } from "./dom.js";

// Returns a function that closes it.
export function notify(text, kind = "", seconds = kind === "bad" ? 15 : 5, action = null) {
  const box = make("div", { className: kind }, make("span", {}, text));
  const close = () => box.remove();
  if (action)
    box.append(
      make(
        "button",
        {
          type: "button",
          on: {
            click: () => {
              close();
              action.run();
            },
          },
        },
        action.label,
      ),
    );
  box.append(make("button", { type: "button", className: "quiet", "aria-label": "Close this message", on: { click: close } }, "✕"));
  find("messages").append(box);
  while (find("messages").children.length > 3) find("messages").firstChild.remove();
  if (seconds) setTimeout(close, seconds * 1000);
  return close;
}

export function showError(error) {
  if (error.name !== "AbortError") notify(error.message, "bad");
}

export function errorBox(error) {
  const rest = [error.expected && `Expected ${error.expected}.`, error.remedy && `To do: ${error.remedy}.`]
    .filter(Boolean)
    .join(" ");
  return make("div", { className: "error", role: "alert" }, make("strong", {}, error.got ?? error.message), rest);
}
