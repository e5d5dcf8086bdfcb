// The first view: one example, released without noise and with more and more of it, and what the attacker reads each time.
import { at } from "./dials.js";
import { stream } from "./stream.js";
import { by, make, number, percent } from "./words.js";

const SHARES = [0.75, 0.5, 0.38, 0.2]; // of the slider, from little noise to much

// The releases of the lesson: no protection, then the first protection of the page at four strengths.
const releases = (offer) => {
  const protection = offer.protections.find((one) => one.name === offer.start);
  const dial = protection && (protection.dials.find((one) => one.alone) || protection.dials[0]);
  if (!dial || !offer.examples.length || protection.misfits[protection.first]) return [];
  const asked = (name, dials) => ({
    sentence: offer.examples[0], protection: name, attack: protection.first, dials, label: offer.labels[0] || null, setting: null,
  });
  const others = protection.dials.filter((one) => !one.alone && one !== dial);
  const standing = Object.fromEntries(others.map((one) => [one.name, one.start]));
  return [
    { words: "no noise", asked: asked("none", {}) },
    ...SHARES.map((share) => at(dial, dial.rises ? 1 - share : share)).map((value) => ({
      words: `${dial.name.replaceAll("_", " ")} ${number(value)}`, asked: asked(protection.name, { ...standing, [dial.name]: value }),
    })),
  ];
};

const rung = (words) => {
  const row = make("li");
  const bar = make("meter");
  bar.min = 0; bar.max = 1; bar.low = 0.25; bar.high = 0.6; bar.optimum = 0; bar.value = 0; // little read is good
  bar.setAttribute("aria-label", `share of the words read, ${words}`);
  row.append(make("strong", words), bar, make("span", "", "share"), make("span", "", "guess"));
  by("ladder").append(row);
  return row;
};

const fill = (row, reading) => {
  row.querySelector("meter").value = reading.leakage.value;
  row.querySelector(".share").textContent = percent(reading.leakage.value);
  row.querySelector(".guess").replaceChildren(...(reading.guess || []).map((piece) => piece.right ? make("mark", piece.text) : piece.text));
};

// Run the lesson until it is done or given up; an attack of the user's own gives it up.
export const teach = async (offer, key, signal) => {
  const list = releases(offer);
  by("lesson").hidden = !list.length;
  if (!list.length) return;
  by("lesson-truth").textContent = offer.examples[0];
  by("lesson-said").textContent = "";
  by("lesson-again").disabled = true;
  by("ladder").replaceChildren();
  const rows = list.map((one) => rung(one.words));
  const shares = [];
  try {
    for (const [place, one] of list.entries()) {
      const last = await stream(one.asked, key, signal, (message) => {
        rows[place].querySelector(".guess").textContent = `${message.stage || "Running"} … ${Math.floor(message.seconds || 0)} s`;
      });
      if (last.state !== "done") break;
      fill(rows[place], last.reading);
      shares.push(last.reading.leakage.value);
    }
  } catch (error) {
    if (!signal.aborted) by("lesson-said").textContent = "Expected a response from the server, got none.";
  } finally {
    rows.slice(shares.length).forEach((row) => { row.querySelector(".share").textContent = ""; row.querySelector(".guess").textContent = "not run"; });
    by("lesson-again").disabled = false;
  }
  if (shares.length === list.length) {
    by("lesson-said").textContent = `Without noise the attacker reads ${percent(shares[0])} of the words; with the most noise ${percent(shares[shares.length - 1])}, `
      + "words that any two such texts share. The price is paid by the model, which sees the same noise.";
  }
};
