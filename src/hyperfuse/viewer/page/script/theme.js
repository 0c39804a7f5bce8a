// Dark or light: as the system is set, until the user chooses.
import { find } from "./dom.js";
import { emit } from "./store.js";

const KEY = "hyperfuse-theme";
const system = matchMedia("(prefers-color-scheme: light)");

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

const theme = () => stored() ?? (system.matches ? "light" : "dark");

function apply() {
  document.documentElement.dataset.theme = theme();
  find("theme").setAttribute("aria-label", `Switch to ${theme() === "dark" ? "light" : "dark"}`);
  emit("theme");
}

export function toggleTheme() {
  const other = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, other);
  } catch {
    /* not available in private windows */
  }
  document.documentElement.dataset.theme = other;
  apply();
}

export function startTheme() {
  find("theme").addEventListener("click", toggleTheme);
  system.addEventListener("change", apply);
  apply();
}
