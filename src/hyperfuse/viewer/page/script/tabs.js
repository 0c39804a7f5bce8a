// One panel at a time; arrow keys move between the tabs.
import { find } from "./dom.js";
import { emit } from "./store.js";

const tabs = () => [...find("tabs").children];

export function showTab(name, focus = false) {
  for (const tab of tabs()) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    find(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  emit("tab", name);
}

export function startTabs() {
  const nameOf = (tab) => tab.id.replace("tab-", "");
  find("tabs").addEventListener("click", (event) => event.target.role === "tab" && showTab(nameOf(event.target)));
  find("tabs").addEventListener("keydown", (event) => {
    const all = tabs(),
      here = all.indexOf(document.activeElement);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || here < 0) return;
    event.preventDefault();
    showTab(nameOf(all[(to + all.length) % all.length]), true);
  });
}
