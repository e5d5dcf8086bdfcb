// Sliders of a protection's strength.
import { make, number } from "./words.js";

// A slider moves in hundredths of its range, on a logarithmic scale unless it is an integer.
export const at = (dial, share) => dial.whole
  ? Math.round(dial.low + share * (dial.high - dial.low))
  : Number((dial.low * (dial.high / dial.low) ** share).toPrecision(3));
export const share = (dial, value) => dial.whole
  ? (value - dial.low) / (dial.high - dial.low)
  : Math.log(value / dial.low) / Math.log(dial.high / dial.low);

// A slider with a number input; calls `moved` with every new value.
export const slider = (dial, standing, moved) => {
  const box = make("div", undefined, "slider");
  const words = make("label", dial.words);
  const range = make("input");
  const exact = make("input");
  range.type = "range"; range.min = 0; range.max = dial.whole ? dial.high - dial.low : 100; range.step = 1;
  range.id = `dial-${dial.name}`;
  words.htmlFor = range.id;
  exact.type = "number"; exact.min = Math.min(dial.low, standing); exact.max = Math.max(dial.high, standing); exact.step = dial.whole ? 1 : "any";
  exact.setAttribute("aria-label", `${dial.words}, exactly`);
  const steps = Number(range.max);
  const show = (value, from) => {
    if (from !== range) range.value = Math.round(share(dial, value) * steps);
    if (from !== exact) exact.value = value;
    range.setAttribute("aria-valuetext", number(value));
  };
  const move = (value, from) => {
    show(value, from);
    moved(value);
  };
  range.addEventListener("input", () => move(at(dial, range.value / steps), range));
  exact.addEventListener("input", () => { if (exact.value !== "") move(Number(exact.value), exact); });
  const ends = make("div", undefined, "ends");
  ends.append(make("span", dial.rises ? "weaker" : "stronger"), make("span", dial.rises ? "stronger" : "weaker"));
  box.append(words, range, exact, ends);
  show(standing);
  return box;
};
