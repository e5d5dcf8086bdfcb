// What is asked of the server, and what it says: the form, the request under way, and the reading.
import { drawCurve, drawHistory } from "./curve.js";
import { at, slider } from "./dials.js";
import { atMost, boundOf, by, make, percent } from "./words.js";

const key = location.hash.slice(1);
// Light, dark, or as the system says.
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
let asking = null; // the request under way, which a newer one aborts
let timer = 0;
let tracing = false;
let picked = false; // whether the attack was chosen by hand
const visit = []; // every reading of this visit; it goes with the page
const stands = new Map(); // where each dial of each protection stands

const problem = (words) => { by("problem").textContent = words; by("problem").hidden = !words; };
const status = (words, refused, aloud) => {
  const told = make("span", aloud || "", "aloud"); // for a screen reader alone: it stands on the page below
  if (by("status").textContent !== words + told.textContent) by("status").replaceChildren(words, told);
  by("status").classList.toggle("refused", Boolean(refused));
  if (refused) by("reading").hidden = true; // what stands there answers another question
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
    const option = new Option(one.name + (misfits[one.name] ? " (nothing to attack here)" : ""), one.name);
    option.disabled = Boolean(misfits[one.name]);
    return option;
  }));
  const fitting = offer.attacks.filter((one) => !misfits[one.name]);
  const kept = picked && fitting.some((one) => one.name === before);
  by("attack").value = kept ? before : protection().first || fitting[0].name; // one whose success moves with the strength
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

// Ask the server; what it says comes line by line until it is done.
const ask = async (asked) => {
  if (asking) asking.abort();
  const mine = asking = new AbortController();
  by("busy").hidden = false;
  by("stop").disabled = false;
  by("reading").classList.add("old");
  status("Asked …");
  try {
    const answer = await fetch("/v1/readings", {
      method: "POST",
      headers: { "content-type": "application/json", "x-discreet-key": key },
      body: JSON.stringify(asked),
      signal: mine.signal,
    });
    if (!answer.ok) { status((await answer.json()).error, true); return false; }
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) { status("Expected an answer, and the connection ended. Is the command still running?", true); return false; }
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const said = JSON.parse(line);
        if (said.state === "done") { show(said.reading, asked); return true; }
        if (said.state === "waiting") status("Busy with the reading before; yours is next.");
        else if (said.state === "running") status(`${said.stage || "At work"} … ${Math.floor(said.seconds)} s`);
        else if (said.state === "superseded") { status("Superseded: a newer reading was asked for, perhaps in another window."); return false; }
        else if (said.state === "cancelled") { status("Stopped. Nothing was read."); return false; }
        else { status(said.error || "Expected another request.", true); return false; }
      }
    }
  } catch (error) {
    if (mine.signal.aborted) { if (asking === mine) status("Stopped. Nothing was read."); }
    else status("Expected an answer from the command, found none. Start `discreet explore` again, and open its address.", true);
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

// Without a sentence there is nothing to show: what stands on the page is of another one.
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
  if (!by("sentence").value.trim()) { clear("Expected a sentence, found none. Type one, or choose an example.", true); return Promise.resolve(false); }
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
    const words = piece.text.trimStart(); // the space before a word is not marked with it
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
  const promise = found.guarantee;
  by("reading").hidden = false;
  by("reading").classList.remove("old");
  by("marks").hidden = !found.truth;
  if (found.truth) fill(by("truth"), found.truth, "Nothing that the model knows.");
  else by("truth").textContent = asked.sentence;
  fill(by("guess"), found.guess, found.truth ? "Nothing." : `A name among ${found.candidates}, right ${percent(leak.value)} of the time.`);
  by("note").textContent = found.note;
  by("leak").textContent = percent(leak.value);
  by("leak-words").textContent = leak.words
    + (leak.n > 1 ? `; 95% between ${percent(leak.low)} and ${percent(leak.high)}` : "")
    + (leak.chance === null || leak.chance === undefined ? "" : `; chance ${percent(leak.chance)}`);
  by("epsilon").replaceChildren(promise.epsilon === null ? "none" : atMost(promise.epsilon), document.createElement("br"));
  const kind = promise.epsilon === null ? ["no guarantee", "none"] : promise.certified ? promise.epsilon > 10 ? ["certified, but weak", "estimate"] : ["certified", "proven"] : ["an estimate", "estimate"];
  by("epsilon").append(make("span", kind[0] + (promise.epsilon === null ? "" : `, ${promise.adjacency}`), `badge ${kind[1]}`));
  by("bound").textContent = found.bound === null ? "no bound" : boundOf(found);
  by("bound-words").textContent = `how often any attack names the right one of ${found.candidates}${found.alike ? ` of the same ${found.alike}` : ""} (chance ${percent(1 / found.candidates)})`;
  by("seconds").textContent = `${found.seconds.toFixed(1)} s`;
  by("guarantee").textContent = promise.sentence;
  by("release").textContent = `Released: ${found.release}`;
  rows(by("figures"), found.figures.map((one) => [one.words, one.value.toFixed(2)]));
  rows(by("columns"), Object.entries(promise.columns).map(([name, value]) => [name, atMost(value)]));
  by("assumed").replaceChildren(...(promise.assumptions || []).map((words) => make("li", `It assumes: ${words}.`)));
  const text = found.guess ? found.guess.map((piece) => piece.text).join("") : "";
  status(found.truth
    ? `Done in ${found.seconds.toFixed(1)} s: ${found.attack} read ${percent(leak.value)}.`
    : `Done in ${found.seconds.toFixed(1)} s: ${found.attack} named the right sentence ${percent(leak.value)} of the time.`,
  false, found.truth ? ` It read: ${text || "nothing"}` : "");
  visit.push({ found, asked });
  drawVisit();
};

const drawVisit = () => {
  drawHistory(visit);
  drawCurve(visit, offer && strength(), by("sentence").value);
};

// Go through the strengths one by one, weakest protection first, until something else is asked.
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
  if (!key) { problem("Expected the key of this start in the address. Open the address that the command printed, whole, with what stands after #."); status("Not ready."); return; }
  try {
    const answer = await fetch("/v1/offer", { headers: { "x-discreet-key": key } });
    const found = await answer.json();
    if (!answer.ok) { problem(found.error); status("Not ready."); return; }
    offer = found;
  } catch (error) {
    problem("Expected an answer from the command, found none. Start `discreet explore` again, and open its address.");
    return;
  }
  by("title").textContent = `Model and other texts are those of ${offer.title}.`;
  by("sentence").maxLength = offer.longest;
  by("example").replaceChildren(new Option("choose …", ""), ...offer.examples.map((text, place) => new Option(text.length > 40 ? `${text.slice(0, 38)} …` : text, String(place))));
  by("protection").replaceChildren(...offer.protections.map((one) => new Option(one.name, one.name)));
  by("protection").value = offer.start;
  by("label").replaceChildren(...offer.labels.map((name) => new Option(name, name)));
  by("label-field").hidden = !offer.labels.length;
  by("setting").replaceChildren(new Option("my own", ""), ...offer.settings.map((one) => new Option(one.label, String(one.number))));
  by("setting-field").hidden = !offer.settings.length;
  drawDials();
  count();
  status("Type a sentence, or choose an example.");
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
      stands.set(slot(dial), chosen.dials[dial.name]); // also where it lies beyond the slider
      if (dial.alone) by("by").value = dial.name;
    }
    drawSliders();
  }
  changed(0);
});
by("protection").addEventListener("change", () => { by("setting").value = ""; drawDials(); changed(0); });
by("by").addEventListener("change", () => { drawSliders(); changed(0); });
by("attack").addEventListener("change", () => { picked = true; by("attack-words").textContent = attack().words; changed(0); });
by("label").addEventListener("change", () => changed(0));
by("live").addEventListener("change", () => changed(0));
by("stop").addEventListener("click", () => { tracing = false; clearTimeout(timer); if (asking) asking.abort(); });
by("trace").addEventListener("click", trace);
addEventListener("hashchange", () => location.reload());
begin();
