// The results of this session: a curve of leakage against strength, and a table.
import { at, share } from "./dials.js";
import { atMost, boundOf, by, make, number, percent } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

const series = (found) => `${found.protection} · ${found.attack}`;
const drawn = (tag, attributes, text) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const shape = (kind, x, y) => [
  () => drawn("circle", { class: "dot", cx: x, cy: y, r: 5.5 }),
  () => drawn("rect", { class: "dot", x: x - 5.5, y: y - 5.5, width: 11, height: 11 }),
  () => drawn("polygon", { class: "dot", points: `${x},${y - 7} ${x + 6.6},${y + 5.5} ${x - 6.6},${y + 5.5}` }),
  () => drawn("polygon", { class: "dot", points: `${x},${y - 7.7} ${x + 7.7},${y} ${x},${y + 7.7} ${x - 7.7},${y}` }),
  () => drawn("path", { class: "dot stroke", d: `M${x - 5.5} ${y - 5.5}l11 11m0 -11l-11 11` }),
  () => drawn("circle", { class: "dot hollow", cx: x, cy: y, r: 5.5 }),
][kind % 6]();

// Draw the leakage of a sentence against a slider, if there is one.
export const drawCurve = (visit, dial, sentence) => {
  const mine = dial ? visit.filter((one) => one.asked.sentence === sentence && one.asked.dials[dial.name] !== undefined) : [];
  const open = visit.filter((one) => one.asked.sentence === sentence && one.found.protection === "none");
  by("curve").hidden = !mine.length;
  by("legend").replaceChildren();
  by("say").textContent = "";
  by("curve-words").textContent = !dial
    ? "Choose a protection with a strength: each attack is then a point, leakage against strength."
    : mine.length ? `Leakage of this sentence against ${dial.words}.` : `No attack on this sentence by ${dial.words} yet. Move the slider, or trace the curve.`;
  if (!mine.length) return;
  const [W, H, L, R, T, B] = [640, 300, 70, 34, 14, 50];
  const x = (value) => L + share(dial, Math.min(Math.max(value, dial.low), dial.high)) * (W - L - R);
  const y = (value) => H - B - value * (H - T - B);
  const title = `Leakage against ${dial.words}`;
  const svg = drawn("svg", { class: "figure", viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": title });
  const grid = drawn("g", { class: "grid", "aria-hidden": "true" });
  const ticks = dial.whole ? [0, .25, .5, .75, 1].map((s) => at(dial, s)) : [];
  if (!dial.whole) {
    const first = Math.ceil(Math.log10(dial.low) - 1e-9);
    const last = Math.floor(Math.log10(dial.high) + 1e-9);
    const step = Math.ceil((last - first) / 6) || 1;
    for (let power = first; power <= last; power += step) ticks.push(10 ** power);
  }
  for (const value of new Set(ticks)) {
    grid.append(drawn("line", { x1: x(value), x2: x(value), y1: T, y2: H - B }), drawn("text", { x: x(value), y: H - B + 17, "text-anchor": "middle" }, number(value)));
  }
  for (const value of [0, .25, .5, .75, 1]) {
    grid.append(drawn("line", { x1: L, x2: W - R, y1: y(value), y2: y(value) }), drawn("text", { x: L - 8, y: y(value) + 4, "text-anchor": "end" }, percent(value)));
  }
  grid.append(drawn("text", { class: "axis", x: (L + W - R) / 2, y: H - 10, "text-anchor": "middle" }, dial.words));
  svg.append(grid);
  const names = [...new Set(mine.map((one) => series(one.found)))];
  const points = drawn("g", { role: "list", "aria-label": title });
  for (const [place, name] of names.entries()) {
    const kind = place + 1;
    const here = mine.filter((one) => series(one.found) === name);
    const means = new Map();
    for (const one of here) {
      const value = one.asked.dials[dial.name];
      means.set(value, [...(means.get(value) || []), one.found.leakage.value]);
    }
    const line = [...means].sort((a, b) => a[0] - b[0]).map(([value, all]) => `${x(value)},${y(all.reduce((a, b) => a + b) / all.length)}`);
    svg.append(drawn("polyline", { class: `line s${kind % 6}`, points: line.join(" ") }));
    const bounds = new Map(here.filter((one) => one.found.truth === null && one.found.bound !== null).map((one) => [one.asked.dials[dial.name], one.found.bound]));
    if (bounds.size > 1) {
      const path = [...bounds].sort((a, b) => a[0] - b[0]).map(([value, most]) => `${x(value)},${y(most)}`);
      svg.append(drawn("polyline", { class: `line bound s${kind % 6}`, points: path.join(" ") }));
    }
    for (const one of here) {
      const value = one.asked.dials[dial.name];
      const words = `${name}, ${dial.words} ${number(value)}: leakage ${percent(one.found.leakage.value)}`;
      const point = drawn("g", { class: `mark point s${kind % 6}`, role: "listitem", tabindex: points.childElementCount ? -1 : 0, "aria-label": words });
      point.append(shape(kind, x(value), y(one.found.leakage.value)));
      points.append(point);
    }
    const item = make("li");
    const key = drawn("svg", { viewBox: "0 0 18 18", class: `mark s${kind % 6}`, "aria-hidden": "true" });
    key.append(shape(kind, 9, 9));
    item.append(key, name + (bounds.size > 1 ? ", dashed: the bound" : ""));
    by("legend").append(item);
  }
  for (const name of new Set(open.map((one) => one.found.attack))) {
    const last = open.filter((one) => one.found.attack === name).pop();
    by("legend").append(make("li", `Without protection, ${name}: ${percent(last.found.leakage.value)}`));
  }
  svg.append(points);
  const tell = (event) => {
    const mark = event.target.closest(".point");
    if (mark) by("say").textContent = mark.getAttribute("aria-label");
  };
  svg.addEventListener("pointerover", tell);
  svg.addEventListener("focusin", tell);
  svg.addEventListener("keydown", (event) => {
    const marks = [...points.children];
    const now = marks.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (now < 0 || !step) return;
    event.preventDefault();
    const next = marks[(now + step + marks.length) % marks.length];
    marks[now].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
  by("curve").replaceChildren(svg);
};

// Fill the table of the last results.
export const drawHistory = (visit) => {
  by("history-box").hidden = !visit.length;
  by("history").replaceChildren(...visit.slice(-50).reverse().map(({ found, asked }) => {
    const line = make("tr");
    const dials = Object.entries(asked.dials).map(([name, value]) => `${name.replaceAll("_", " ")} ${number(value)}`).join(", ");
    line.append(make("td", found.protection), make("td", dials), make("td", found.attack), make("td", percent(found.leakage.value), "n"),
      make("td", found.guarantee.epsilon === null ? "none" : atMost(found.guarantee.epsilon) + (found.guarantee.certified ? "" : " (estimate)"), "n"),
      make("td", found.bound === null ? "none" : boundOf(found), "n"), make("td", `${found.seconds.toFixed(1)} s`, "n"));
    return line;
  }));
};
