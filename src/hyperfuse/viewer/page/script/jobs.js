// Long work on the server, polled until it ends.
import { get, post } from "./api.js";
import { make, number } from "./dom.js";
import { errorBox } from "./messages.js";

const OFTEN_MS = 400;

export function duration(seconds) {
  if (seconds < 1) return "less than a second";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
}

// A box with a progress bar, a caption and a button to cancel; `ended(job)` is called once.
export function watch(job, title, ended) {
  const bar = make("progress", { max: 1, "aria-label": title });
  const caption = make("p", { className: "note number", "aria-live": "polite" });
  const stop = make(
    "button",
    {
      type: "button",
      className: "cancel",
      on: {
        click: async () => {
          stop.disabled = true;
          await post(`api/jobs/${job.job}/cancel`).catch(() => {});
        },
      },
    },
    "Cancel",
  );
  const notes = make("div", { className: "steps" });
  const box = make(
    "div",
    { className: "group", role: "group", "aria-label": title },
    make("div", { className: "row spread" }, make("strong", {}, title), stop),
    bar,
    caption,
    notes,
  );
  show(job);
  follow();
  return box;

  function show(now) {
    if (now.total) bar.value = now.done / now.total;
    else bar.removeAttribute("value");
    const speed = now.megapixels_per_second ? ` · ${number(now.megapixels_per_second, 2)} MPix/s` : "";
    const left = now.seconds_left !== null ? ` · about ${duration(now.seconds_left)} left of this step` : "";
    const counted = now.total > 1 ? ` ${now.done} of ${now.total} ${now.unit}` : "";
    caption.textContent =
      now.state === "stopping" ? "Stopping …" : `${now.step}${counted} · ${duration(now.seconds)} so far${speed}${left}`;
    notes.replaceChildren(...now.notes.map((note) => make("p", { className: "warn" }, note)));
  }

  async function follow() {
    let now = job;
    while (now.state === "running" || now.state === "stopping") {
      await new Promise((resolve) => setTimeout(resolve, OFTEN_MS));
      try {
        now = await get(`api/jobs/${job.job}`);
      } catch (error) {
        box.replaceChildren(errorBox(error));
        return;
      }
      if (box.isConnected) show(now);
    }
    ended(now);
  }
}
