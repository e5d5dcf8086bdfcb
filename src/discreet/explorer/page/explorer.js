// The form, the current request to the server, and its result.
import { drawCurve, drawHistory } from "./curve.js";
import { at, slider } from "./dials.js";
import { teach } from "./lesson.js";
import { stream } from "./stream.js";
import { drawTrainedModel } from "./trained_model.js";
import { atMost, boundOf, by, make, percent } from "./words.js";

const key = location.hash.slice(1);
// Light or dark; by default the setting of the system.
const theme = by("theme");
const dark = () => document.documentElement.dataset.theme
  ? document.documentElement.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
const nameTheme = () => { theme.textContent = dark() ? "Light" : "Dark"; };
theme.hidden = false;
theme.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; nameTheme(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();

let offer = null;
let asking = null; // the current request, which a newer one aborts
let lesson = null; // the releases of the first view, which an attack of the user's own aborts
let timer = 0;
let tracing = false;
let picked = false; // whether the user chose the attack
const visit = []; // every result of this session; kept only in this page
const stands = new Map(); // the value of each slider of each protection

const problem = (words) => { by("problem").textContent = words; by("problem").hidden = !words; };
const status = (words, refused, aloud) => {
  const extra = make("span", aloud || "", "aloud"); // only for screen readers: the page shows it below
  if (by("status").textContent !== words + extra.textContent) by("status").replaceChildren(words, extra);
  by("status").classList.toggle("refused", Boolean(refused));
  if (refused) by("reading").hidden = true; // the shown result belongs to another request
};

const protection = () => offer.protections.find((one) => one.name === by("protection").value);
const attack = () => offer.attacks.find((one) => one.name === by("attack").value);
const strength = () => protection().dials.find((dial) => dial.alone && dial.name === by("by").value)
  || protection().dials.find((dial) => !dial.alone);

const slot = (dial) => `${by("protection").value} ${dial.name}`;
const standing = (dial) => stands.has(slot(dial)) ? stands.get(slot(dial)) : dial.start;

const drawDials = () => {
  const chosen = protection();
  by("protection-words").textContent = chosen.words;
  by("dials").hidden = !chosen.dials.length;
  const alone = chosen.dials.filter((dial) => dial.alone);
  const before = by("by").value;
  by("by").replaceChildren(...alone.map((dial) => new Option(dial.words, dial.name)));
  if (alone.some((dial) => dial.name === before)) by("by").value = before;
  by("alone").hidden = alone.length < 2;
  drawSliders();
  drawAttacks();
};

const drawSliders = () => {
  const shown = protection().dials.filter((dial) => !dial.alone || dial.name === by("by").value);
  by("sliders").replaceChildren(...shown.map((dial) => slider(dial, standing(dial), (value) => {
    stands.set(slot(dial), value);
    changed(300);
  })));
};

const drawAttacks = () => {
  const misfits = protection().misfits;
  const before = by("attack").value;
  by("attack").replaceChildren(...offer.attacks.map((one) => {
    const option = new Option(one.name + (misfits[one.name] ? " (does not fit)" : ""), one.name);
    option.disabled = Boolean(misfits[one.name]);
    return option;
  }));
  const fitting = offer.attacks.filter((one) => !misfits[one.name]);
  const kept = picked && fitting.some((one) => one.name === before);
  by("attack").value = kept ? before : protection().first || fitting[0].name; // one whose success changes with the strength
  by("attack-words").textContent = attack().words;
};

const question = () => {
  const dials = {};
  for (const dial of protection().dials) {
    if (!dial.alone || dial.name === by("by").value) dials[dial.name] = standing(dial);
  }
  const setting = by("setting").value;
  return {
    sentence: by("sentence").value,
    protection: protection().name,
    attack: attack().name,
    dials,
    label: by("label").value || null,
    setting: setting === "" ? null : Number(setting),
  };
};

// Run an attack and show its result.
const ask = async (asked) => {
  if (lesson) lesson.abort();
  if (asking) asking.abort();
  const mine = asking = new AbortController();
  by("busy").hidden = false;
  by("stop").disabled = false;
  by("reading").classList.add("old");
  status("Sent …");
  try {
    const last = await stream(asked, key, mine.signal, (message) => {
      if (message.state === "waiting") status("Waiting for the previous attack to stop.");
      else status(`${message.stage || "Running"} … ${Math.floor(message.seconds)} s`);
    });
    if (last.state === "done") { show(last.reading, asked); return true; }
    if (last.state === "superseded") status("Superseded by a newer attack, perhaps in another window.");
    else if (last.state === "cancelled") status("Stopped. There is no result.");
    else status(last.error || "Expected another request.", true);
    return false;
  } catch (error) {
    if (mine.signal.aborted) { if (asking === mine) status("Stopped. There is no result."); }
    else status("Expected a response from the server, got none. Start `discreet explore` again and open its address.", true);
    return false;
  } finally {
    if (asking === mine) {
      asking = null;
      by("busy").hidden = true;
      by("stop").disabled = true;
      by("trace").disabled = !strength();
    }
  }
};

// Without a sentence there is no result: the shown one belongs to another sentence.
const clear = (words, refused) => {
  if (asking) asking.abort();
  asking = null;
  by("busy").hidden = by("stop").disabled = true;
  by("reading").hidden = true;
  for (const place of ["truth", "guess", "note"]) by(place).replaceChildren();
  status(words, refused);
};
const go = () => {
  clearTimeout(timer);
  if (!offer) return Promise.resolve(false);
  if (!by("sentence").value.trim()) { clear("Expected a sentence, got none. Type one, or choose an example.", true); return Promise.resolve(false); }
  return ask(question());
};
const changed = (wait) => {
  clearTimeout(timer);
  tracing = false;
  drawVisit();
  const blank = !by("sentence").value.trim();
  by("trace").disabled = !strength() || blank;
  if (blank) clear("Type a sentence, or choose an example.");
  else if (by("live").checked) timer = setTimeout(go, wait);
};

const fill = (place, pieces, none) => {
  if (!pieces || !pieces.length) { place.replaceChildren(make("span", none, "nothing")); return; }
  place.replaceChildren(...pieces.flatMap((piece) => {
    const words = piece.text.trimStart(); // do not mark the space before a word
    const space = piece.text.slice(0, piece.text.length - words.length);
    return piece.right ? [space, make("mark", words)] : [piece.text];
  }));
};
const rows = (body, pairs) => {
  body.replaceChildren(...pairs.map(([words, value]) => {
    const line = make("tr");
    const head = make("th", words);
    head.scope = "row";
    line.append(head, make("td", value, "n"));
    return line;
  }));
  body.closest("table").hidden = !pairs.length;
};

const show = (found, asked) => {
  const leak = found.leakage;
  const guarantee = found.guarantee;
  by("reading").hidden = false;
  by("reading").classList.remove("old");
  by("marks").hidden = !found.truth;
  if (found.truth) fill(by("truth"), found.truth, "Only tokens the model does not know.");
  else by("truth").textContent = asked.sentence;
  fill(by("guess"), found.guess, found.truth ? "Nothing." : `One of ${found.candidates} candidates, correct ${percent(leak.value)} of the time.`);
  by("note").textContent = found.note;
  by("leak").textContent = percent(leak.value);
  by("leak-words").textContent = leak.words
    + (leak.n > 1 ? `; 95% between ${percent(leak.low)} and ${percent(leak.high)}` : "")
    + (leak.chance === null || leak.chance === undefined ? "" : `; chance ${percent(leak.chance)}`);
  by("epsilon").replaceChildren(guarantee.epsilon === null ? "none" : atMost(guarantee.epsilon), document.createElement("br"));
  const kind = guarantee.epsilon === null ? ["no guarantee", "none"] : guarantee.certified ? guarantee.epsilon > 10 ? ["certified, but weak", "estimate"] : ["certified", "proven"] : ["an estimate", "estimate"];
  by("epsilon").append(make("span", kind[0] + (guarantee.epsilon === null ? "" : `, ${guarantee.adjacency}`), `badge ${kind[1]}`));
  by("bound").textContent = found.bound === null ? "no bound" : boundOf(found);
  by("bound-words").textContent = `how often any attack identifies the right one of ${found.candidates}${found.alike ? ` of the same ${found.alike}` : ""} (chance ${percent(1 / found.candidates)})`;
  by("seconds").textContent = `${found.seconds.toFixed(1)} s`;
  by("guarantee").textContent = guarantee.sentence;
  by("release").textContent = `Released: ${found.release}`;
  rows(by("figures"), found.figures.map((one) => [one.words, one.value.toFixed(2)]));
  rows(by("columns"), Object.entries(guarantee.columns).map(([name, value]) => [name, atMost(value)]));
  by("assumed").replaceChildren(...(guarantee.assumptions || []).map((words) => make("li", `Assumption: ${words}.`)));
  const text = found.guess ? found.guess.map((piece) => piece.text).join("") : "";
  status(found.truth
    ? `Done in ${found.seconds.toFixed(1)} s: ${found.attack} recovered ${percent(leak.value)}.`
    : `Done in ${found.seconds.toFixed(1)} s: ${found.attack} identified the right sentence ${percent(leak.value)} of the time.`,
  false, found.truth ? ` Guess: ${text || "nothing"}` : "");
  visit.push({ found, asked });
  drawVisit();
};

const drawVisit = () => {
  drawHistory(visit);
  drawCurve(visit, offer && strength(), by("sentence").value);
};

// Attack at each strength, weakest protection first, until the form changes.
const trace = async () => {
  const dial = strength();
  if (!dial) return;
  changed(0);
  clearTimeout(timer);
  tracing = true;
  const shares = [0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1];
  if (!dial.rises) shares.reverse();
  for (const part of shares) {
    if (!tracing) return;
    stands.set(slot(dial), at(dial, part));
    drawSliders();
    if (!await ask(question())) break;
  }
  tracing = false;
};

const begin = async () => {
  if (!key) { problem("Expected the key of this session in the address. Open the full printed address, including the part after #."); status("Not ready."); return; }
  try {
    const answer = await fetch("/v1/offer", { headers: { "x-discreet-key": key } });
    const found = await answer.json();
    if (!answer.ok) { problem(found.error); status("Not ready."); return; }
    offer = found;
  } catch (error) {
    problem("Expected a response from the server, got none. Start `discreet explore` again and open its address.");
    return;
  }
  by("title").textContent = `The model and the other texts come from ${offer.title}.`;
  by("sentence").maxLength = offer.longest;
  by("example").replaceChildren(new Option("choose …", ""), ...offer.examples.map((text, place) => new Option(text.length > 40 ? `${text.slice(0, 38)} …` : text, String(place))));
  by("protection").replaceChildren(...offer.protections.map((one) => new Option(one.name, one.name)));
  by("protection").value = offer.start;
  by("label").replaceChildren(...offer.labels.map((name) => new Option(name, name)));
  by("label-field").hidden = !offer.labels.length;
  by("setting").replaceChildren(new Option("custom", ""), ...offer.settings.map((one) => new Option(one.label, String(one.number))));
  by("setting-field").hidden = !offer.settings.length;
  drawDials(); drawTrainedModel(offer.trained_model);
  count();
  status("Type a sentence, or choose an example.");
  startLesson();
};
const startLesson = () => {
  if (lesson) lesson.abort();
  if (asking) asking.abort();
  lesson = new AbortController();
  teach(offer, key, lesson.signal);
};
const count = () => { by("count").textContent = `${by("sentence").value.length} of ${offer ? offer.longest : ""} characters`; };

by("form").addEventListener("submit", (event) => { event.preventDefault(); tracing = false; go(); });
by("sentence").addEventListener("input", () => { count(); by("example").value = ""; changed(900); });
by("sentence").addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); go(); } });
by("example").addEventListener("change", () => {
  if (by("example").value === "") return;
  by("sentence").value = offer.examples[Number(by("example").value)];
  count();
  changed(0);
});
by("setting").addEventListener("change", () => {
  const chosen = offer.settings.find((one) => String(one.number) === by("setting").value);
  if (chosen) {
    by("protection").value = chosen.protection;
    drawDials();
    for (const dial of protection().dials) {
      if (chosen.dials[dial.name] === undefined) continue;
      stands.set(slot(dial), chosen.dials[dial.name]); // also if it is outside the range of the slider
      if (dial.alone) by("by").value = dial.name;
    }
    drawSliders();
  }
  changed(0);
});
by("protection").addEventListener("change", () => { by("setting").value = ""; drawDials(); changed(0); });
by("by").addEventListener("change", () => { drawSliders(); changed(0); });
by("attack").addEventListener("change", () => { picked = true; by("attack-words").textContent = attack().words; changed(0); });
for (const name of ["label", "live"]) by(name).addEventListener("change", () => changed(0));
by("stop").addEventListener("click", () => { tracing = false; clearTimeout(timer); if (asking) asking.abort(); });
by("trace").addEventListener("click", trace);
by("lesson-again").addEventListener("click", () => { tracing = false; startLesson(); });
addEventListener("hashchange", () => location.reload());
begin();
