// Choose two files of the folder, or drop them, and see what is in them.
import { get, RequestError, upload } from "./api.js";
import { button, bytes, field, find, make, option, replace } from "./dom.js";
import { fewFacts } from "./file_facts.js";
import { errorBox } from "./messages.js";
import { emit, on, state } from "./store.js";

const TITLES = { hsi: "HSI: coarse, many narrow bands", msi: "MSI: fine, few bands" };
const summaries = new Map(); // path and time of change -> what is in it
export const chosen = { hsi: "", msi: "" };
export let files = [];
let uploadLimit = Infinity;

const keyOf = (path) => `${path} ${files.find((file) => file.path === path)?.modified}`;
export const summaryOf = (path) => summaries.get(keyOf(path));

async function summary(path) {
  const key = keyOf(path);
  if (!summaries.has(key)) summaries.set(key, await get(`api/files/summary?path=${encodeURIComponent(path)}`));
  return summaries.get(key);
}

export async function renderChoice(box) {
  ({ files } = await get("api/files"));
  replace(box, make("h3", {}, "1  Two images of one place"), dropZone(box), picker("hsi"), picker("msi"));
  await Promise.all([showCard("hsi"), showCard("msi")]);
}

function picker(role) {
  const select = make(
    "select",
    { className: "wide", id: `fuse-${role}`, on: { change: () => choose(role, select.value) } },
    option("", "choose a file", chosen[role]),
    files.map((file) => option(file.path, `${file.path} (${bytes(file.bytes)})`, chosen[role])),
  );
  return make("div", { className: "steps" }, field(TITLES[role], select), make("div", { id: `card-${role}` }));
}

export async function choose(role, path) {
  chosen[role] = path;
  find(`fuse-${role}`).value = path;
  emit("chosen");
  await showCard(role);
  emit("chosen");
}

async function showCard(role) {
  const box = find(`card-${role}`);
  const path = chosen[role];
  if (!path) return replace(box);
  try {
    const about = await summary(path);
    if (chosen[role] !== path) return;
    const [size, ...others] = fewFacts(about);
    const source = `api/files/picture?path=${encodeURIComponent(path)}`;
    const caption = make(
      "div",
      {},
      make("p", {}, make("strong", {}, size)),
      others.map((line) => make("p", {}, line)),
    );
    replace(box, make("div", { className: "card" }, make("img", { src: source, alt: `Small picture of ${path}` }), caption));
  } catch (error) {
    replace(box, errorBox(error));
  }
}

function dropZone(box) {
  const input = make("input", { type: "file", multiple: true, className: "unseen", id: "drop-input" });
  input.addEventListener("change", () => take(box, [...input.files]));
  const zone = make(
    "div",
    { className: "drop", id: "drop" },
    make("span", {}, "Drop files here, or"),
    button("choose from this machine", () => input.click()),
    input,
    make("div", { id: "uploads", className: "wide" }),
  );
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(box, [...event.dataTransfer.files]);
  });
  return zone;
}

// Copied into the folder; the one with more bands is the HSI.
async function take(box, dropped) {
  const taken = [];
  for (const file of dropped) {
    const path = await copied(file);
    if (path) taken.push(path);
  }
  const problems = [...find("uploads").children];
  await renderChoice(box);
  emit("files", "uploaded");
  find("uploads").append(...problems);
  const cubes = taken.filter((path) => files.some((file) => file.path === path));
  if (cubes.length === 1) await choose(chosen.hsi ? "msi" : "hsi", cubes[0]);
  if (cubes.length === 2) {
    const bands = await Promise.all(
      cubes.map((path) =>
        summary(path).then(
          (about) => about.bands,
          () => 0,
        ),
      ),
    );
    const hsi = bands[0] >= bands[1] ? 0 : 1;
    await Promise.all([choose("hsi", cubes[hsi]), choose("msi", cubes[1 - hsi])]);
  }
}

async function copied(file) {
  const bar = make("progress", { max: 1, value: 0, "aria-label": `Copying ${file.name}` });
  const row = make("div", {}, make("span", { className: "small" }, file.name), bar);
  find("uploads").append(row);
  try {
    if (file.size > uploadLimit) throw tooLarge(file);
    const { path } = await upload(file, (share) => (bar.value = share));
    row.remove();
    return path;
  } catch (error) {
    row.replaceChildren(errorBox(error));
    return null;
  }
}

function tooLarge(file) {
  const remedy = "copy it into the folder, then choose it from the list";
  return new RequestError({ got: `${file.name} is ${bytes(file.size)}`, expected: `at most ${bytes(uploadLimit)}`, remedy });
}

export function startChoice() {
  on("scene", () => (uploadLimit = state.scene.upload_limit ?? uploadLimit));
}
