// What is known about the open images, and a way to open others.
import { get, post } from "./api.js";
import { button, bytes, facts, field, find, make, option, replace } from "./dom.js";
import { allFacts, bands } from "./file_facts.js";
import { watch } from "./jobs.js";
import { errorBox, notify, showError } from "./messages.js";
import { emit, image, on, state } from "./store.js";

const ROLES = {
  fused: "Fused or any cube",
  hsi: "HSI",
  msi: "MSI",
  reference: "Reference",
  uncertainty: "Uncertainty",
  change_mask: "Change mask",
};

export async function openScene(files) {
  emit("opened", await post("api/scene", files));
}

function imageCard(one) {
  const body = make("div", {});
  const size = `${bands(one.bands)}, ${one.height} × ${one.width}${one.has_overviews ? ", with overviews" : ""}`;
  const title = make("summary", {}, `${one.title}: ${one.file}`, make("span", { className: "note size" }, size));
  const details = make("details", {}, title, body);
  details.addEventListener("toggle", async () => {
    if (!details.open || body.children.length) return;
    try {
      const about = await get(`api/images/${one.role}`);
      replace(body, facts([["File", about.file], ...allFacts(about)]));
    } catch (error) {
      replace(body, errorBox(error));
    }
  });
  return make("div", {}, details, one.offers_overviews ? overviewOffer(one) : null);
}

function overviewOffer(one) {
  const box = make("div", { className: "steps" });
  const caption = make(
    "p",
    {},
    "This image is large and has no overviews, so it is slow when zoomed out. They can be built into a file beside it (",
    make("code", {}, `${one.file}.ovr`),
    ", about a third of its size); the image itself is not changed.",
  );
  const ended = (job) => {
    if (job.state !== "done") return replace(box, job.error ? errorBox(job.error) : offer);
    notify(`${one.title} has overviews now`);
    emit("reload");
  };
  const build = async () => {
    try {
      const job = await post("api/overviews", { role: one.role });
      replace(box, watch(job, `Building overviews of ${one.title}`, ended));
    } catch (error) {
      showError(error);
    }
  };
  const offer = make("div", { className: "warn" }, caption, button("Build overviews", build, { className: "build-overviews" }));
  replace(box, offer);
  return box;
}

async function opener() {
  const title = make("h3", {}, "Open other files");
  try {
    const { folder, files } = await get("api/files");
    const note = make(
      "p",
      { className: "note" },
      files.length ? `Files of the folder ${folder}.` : `There are no cubes in ${folder}.`,
    );
    return make("div", { className: "group" }, title, files.length ? openForm(files) : null, note);
  } catch (error) {
    return make("div", { className: "group" }, title, errorBox(error));
  }
}

function openForm(files) {
  const problem = make("div", {});
  const selects = Object.keys(ROLES).map((role) =>
    make(
      "select",
      { className: "wide", id: `open-${role}`, data: { role } },
      option("", "–"),
      files.map((file) => option(file.path, `${file.path} (${bytes(file.bytes)})`, image(role)?.path)),
    ),
  );
  const open = async () => {
    replace(problem);
    const chosen = selects.filter((select) => select.value).map((select) => [select.dataset.role, select.value]);
    try {
      await openScene(Object.fromEntries(chosen));
    } catch (error) {
      replace(problem, errorBox(error));
    }
  };
  const fields = selects.map((select) => field(ROLES[select.dataset.role], select));
  return make("div", { className: "steps" }, fields, problem, button("Open", open, { className: "primary", id: "open-files" }));
}

async function render() {
  const cards = state.scene.images.map(imageCard);
  const opened = cards.length ? make("div", { className: "group" }, make("h3", {}, "Open images"), cards) : null;
  replace(find("panel-files"), opened, await opener());
}

// Rendered when it is shown, and again when something has changed.
function refresh() {
  if (find("panel-files").hidden) replace(find("panel-files"));
  else render();
}

export function startFiles() {
  on("scene", refresh);
  on("files", refresh);
  on("tab", (name) => name === "files" && !find("panel-files").children.length && render());
}
