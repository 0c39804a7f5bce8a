// Dark or light: as the system says, until the person in front of it says otherwise.
import { find } from "./dom.js";
import { tell } from "./store.js";

const KEY = "hyperfuse-theme";
const system = matchMedia("(prefers-color-scheme: light)");

function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

const wanted = () => remembered() ?? (system.matches ? "light" : "dark");

function apply() {
  document.documentElement.dataset.theme = wanted();
  find("theme").setAttribute("aria-label", `Switch to ${wanted() === "dark" ? "light" : "dark"}`);
  tell("theme");
}

export function toggleTheme() {
  const other = wanted() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, other);
  } catch {
    /* private windows forget */
  }
  document.documentElement.dataset.theme = other;
  apply();
}

export function startTheme() {
  find("theme").addEventListener("click", toggleTheme);
  system.addEventListener("change", apply);
  apply();
}
