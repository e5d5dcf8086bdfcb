(() => {
  "use strict";
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));

  // Light, dark, or as the system says.
  const theme = document.getElementById("theme");
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();

  // Tabs: click, or arrows, Home and End.
  for (const list of all('[role="tablist"]')) {
    const tabs = all('[role="tab"]', list);
    const choose = (tab, focus) => {
      for (const other of tabs) {
        const mine = other === tab;
        other.setAttribute("aria-selected", String(mine));
        other.tabIndex = mine ? 0 : -1;
        document.getElementById(other.getAttribute("aria-controls")).hidden = !mine;
      }
      if (focus) tab.focus();
    };
    list.addEventListener("click", (event) => {
      const tab = event.target.closest('[role="tab"]');
      if (tab) choose(tab, false);
    });
    list.addEventListener("keydown", (event) => {
      const at = tabs.indexOf(document.activeElement);
      const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (at < 0 || to === undefined) return;
      event.preventDefault();
      choose(tabs[(to + tabs.length) % tabs.length], true);
    });
    if (tabs.length) choose(tabs[0], false);
  }

  // Figures: hover or focus says what a mark is; arrows go from mark to mark.
  for (const figure of all("svg.figure")) {
    const marks = all(".mark", figure);
    const say = figure.parentElement.querySelector(".say");
    const tell = (mark) => { if (say && mark) say.textContent = mark.getAttribute("aria-label"); };
    figure.addEventListener("pointerover", (event) => tell(event.target.closest(".mark")));
    figure.addEventListener("click", (event) => tell(event.target.closest(".mark")));
    figure.addEventListener("focusin", (event) => tell(event.target.closest(".mark")));
    figure.addEventListener("keydown", (event) => {
      const at = marks.indexOf(document.activeElement);
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (at < 0 || !step) return;
      event.preventDefault();
      const next = marks[(at + step + marks.length) % marks.length];
      marks[at].setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  }

  // Paper has no folds: open them to print, but for the longest lists, and fold them again afterwards.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open]):not(.bulk)");
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; folded = []; });

  // A link to a footnote opens the list it is in.
  const reveal = () => {
    const at = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = at && at.closest("details");
    if (fold && !fold.open) { fold.open = true; at.scrollIntoView(); }
  };
  addEventListener("hashchange", reveal);
  reveal();

  // Tables: a heading sorts its column, again turns it round; what has no number goes last.
  for (const table of all("table.sorts")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const rows = Array.from(body.rows).map((row) => {
          const cell = row.cells[column];
          const raw = cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v;
          const value = raw === "" ? null : Number(raw);
          return { row, raw, value: Number.isNaN(value) ? null : value, empty: raw === "" };
        });
        const numbers = rows.every((r) => r.empty || r.value !== null);
        rows.sort((a, b) => {
          if (a.empty || b.empty) return Number(a.empty) - Number(b.empty);
          const order = numbers ? a.value - b.value : a.raw.localeCompare(b.raw);
          return up ? order : -order;
        });
        body.append(...rows.map((r) => r.row));
        const told = document.getElementById("told");
        if (told) told.textContent = `Sorted by ${button.textContent.trim()}, ${up ? "rising" : "falling"}.`;
      });
    });
  }
})();
