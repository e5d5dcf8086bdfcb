// What a study found out about its trained models: who was in the training data, in words and as ROC curves.
import { by, make } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const LEAST = 1e-3; // of both axes, which are logarithmic
const SIZE = 150;
const place = (share) => 1 - Math.log10(Math.max(share, LEAST)) / Math.log10(LEAST);
const node = (name, values) => {
  const one = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(values)) one.setAttribute(key, value);
  return one;
};
const path = (rates, values, look) => node("polyline", {
  points: rates.map((rate, i) => `${SIZE * place(rate)},${SIZE * (1 - place(values[i]))}`).join(" "), fill: "none", stroke: "currentColor", ...look,
});

// True positives against false positives; dashed, the most that the certificate allows; dotted, guessing.
const drawRoc = (found) => {
  const picture = node("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, width: SIZE, height: SIZE, role: "img" });
  picture.setAttribute("aria-label", `ROC curve of ${found.attack}, ${found.setting}, logarithmic axes from 0.1% to 100%`);
  picture.append(node("rect", { x: 0, y: 0, width: SIZE, height: SIZE, fill: "none", stroke: "currentColor", opacity: 0.3 }));
  picture.append(path([LEAST, 1], [LEAST, 1], { "stroke-dasharray": "1 4" }));
  if (found.roc.bound) picture.append(path(found.roc.false_positives, found.roc.bound, { "stroke-dasharray": "5 3" }));
  picture.append(path(found.roc.false_positives, found.roc.true_positives, { "stroke-width": 2 }));
  return picture;
};

export const drawTrainedModel = (about) => {
  const words = about.findings.length
    ? "True against false positives, both axes logarithmic from 0.1%. Dashed: the most that the certificate allows. Dotted: guessing."
    : `Attacks on a trained model (${about.attacks.join(", ")}) ask about its training data, which a typed sentence does not have. Run them with discreet attack RUN, or open a study that has one.`;
  by("trained-words").textContent = words;
  by("trained-findings").replaceChildren(...about.findings.map((found) => {
    const item = make("li", "");
    item.append(make("strong", `${found.setting}, ${found.attack}: `), found.verdict);
    if (found.roc.false_positives) item.append(document.createElement("br"), drawRoc(found));
    return item;
  }));
};
