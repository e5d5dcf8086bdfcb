(() => {
  "use strict";
  const by = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const key = location.hash.slice(1);
  const make = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const percent = (value) => {
    const shown = 100 * value;
    return `${shown >= 99.95 || shown === 0 ? shown.toFixed(0) : shown >= 10 ? shown.toFixed(0) : shown >= 1 ? shown.toFixed(1) : shown.toPrecision(2)}%`;
  };
  const number = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) {
      const [head, power] = value.toExponential(1).split("e");
      const raised = String(Number(power)).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
      return Number(head) === 1 ? `10${raised}` : `${Number(head)}·10${raised}`;
    }
    return size >= 999.5 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  };

  // What is proven is at most so much: it is rounded up, never down.
  const up = (value, digits) => {
    const near = Number(value.toPrecision(digits));
    return near >= value ? near : Number((near + 10 ** (Math.floor(Math.log10(near)) - digits + 1)).toPrecision(digits));
  };
  const atMost = (value) => number(up(value, value >= 1e5 || value < 1e-3 ? 2 : 3));
  const boundOf = (found) => `≤ ${percent(Math.min(1, up(found.bound, 2)))}`;

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

  // A slider goes by hundredths of the way, even in the logarithm unless it counts.
  const at = (dial, share) => dial.whole
    ? Math.round(dial.low + share * (dial.high - dial.low))
    : Number((dial.low * (dial.high / dial.low) ** share).toPrecision(3));
  const share = (dial, value) => dial.whole
    ? (value - dial.low) / (dial.high - dial.low)
    : Math.log(value / dial.low) / Math.log(dial.high / dial.low);
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
    by("sliders").replaceChildren(...shown.map((dial) => {
      const box = make("div", undefined, "slider");
      const words = make("label", dial.words);
      const range = make("input");
      const exact = make("input");
      range.type = "range"; range.min = 0; range.max = dial.whole ? dial.high - dial.low : 100; range.step = 1;
      range.id = `dial-${dial.name}`;
      words.htmlFor = range.id;
      exact.type = "number"; exact.min = Math.min(dial.low, standing(dial)); exact.max = Math.max(dial.high, standing(dial)); exact.step = dial.whole ? 1 : "any";
      exact.setAttribute("aria-label", `${dial.words}, exactly`);
      const steps = Number(range.max);
      const show = (value, from) => {
        if (from !== range) range.value = Math.round(share(dial, value) * steps);
        if (from !== exact) exact.value = value;
        range.setAttribute("aria-valuetext", number(value));
      };
      const moved = (value, from) => {
        stands.set(slot(dial), value);
        show(value, from);
        changed(300);
      };
      range.addEventListener("input", () => moved(at(dial, range.value / steps), range));
      exact.addEventListener("input", () => { if (exact.value !== "") moved(Number(exact.value), exact); });
      const ends = make("div", undefined, "ends");
      ends.append(make("span", dial.rises ? "weaker" : "stronger"), make("span", dial.rises ? "stronger" : "weaker"));
      box.append(words, range, exact, ends);
      show(standing(dial));
      return box;
    }));
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
    by("attack").value = fitting.some((one) => one.name === before) ? before : fitting[0].name;
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

  const go = () => {
    clearTimeout(timer);
    if (!offer) return Promise.resolve(false);
    if (!by("sentence").value.trim()) { if (asking) asking.abort(); asking = null; by("busy").hidden = by("stop").disabled = true; status("Expected a sentence, found none. Type one, or choose an example.", true); return Promise.resolve(false); }
    return ask(question());
  };
  const changed = (wait) => {
    clearTimeout(timer);
    tracing = false;
    drawCurve();
    by("trace").disabled = !strength() || !by("sentence").value.trim();
    if (by("live").checked && by("sentence").value.trim()) timer = setTimeout(go, wait);
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
    const kind = promise.epsilon === null ? ["no guarantee", "none"] : promise.certified ? ["certified", "proven"] : ["an estimate", "estimate"];
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
    drawCurve();
  };

  // The curve of this visit: the strength that is moved, against how much was read.
  const series = (asked, found) => `${found.protection} · ${found.attack}`;
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

  const drawCurve = () => {
    drawHistory();
    const dial = offer && strength();
    const sentence = by("sentence").value;
    const mine = dial ? visit.filter((one) => one.asked.sentence === sentence && one.asked.dials[dial.name] !== undefined) : [];
    const open = visit.filter((one) => one.asked.sentence === sentence && one.found.protection === "none");
    by("curve").hidden = !mine.length;
    by("legend").replaceChildren();
    by("say").textContent = "";
    by("curve-words").textContent = !dial
      ? "Choose a protection with a strength: every reading is then a point, how much was read against the strength."
      : mine.length ? `How much was read of this sentence, against ${dial.words}.` : `No reading of this sentence by ${dial.words} yet. Move the dial, or trace the curve.`;
    if (!mine.length) return;
    const [W, H, L, R, T, B] = [640, 300, 70, 34, 14, 50];
    const x = (value) => L + share(dial, Math.min(Math.max(value, dial.low), dial.high)) * (W - L - R);
    const y = (value) => H - B - value * (H - T - B);
    const title = `How much was read against ${dial.words}`;
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
    const names = [...new Set(mine.map((one) => series(one.asked, one.found)))];
    const points = drawn("g", { role: "list", "aria-label": title });
    for (const [place, name] of names.entries()) {
      const kind = place + 1;
      const here = mine.filter((one) => series(one.asked, one.found) === name);
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
        const words = `${name}, ${dial.words} ${number(value)}: read ${percent(one.found.leakage.value)}`;
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

  const drawHistory = () => {
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
  by("attack").addEventListener("change", () => { by("attack-words").textContent = attack().words; changed(0); });
  by("label").addEventListener("change", () => changed(0));
  by("live").addEventListener("change", () => changed(0));
  by("stop").addEventListener("click", () => { tracing = false; clearTimeout(timer); if (asking) asking.abort(); });
  by("trace").addEventListener("click", trace);
  addEventListener("hashchange", () => location.reload());
  begin();
})();
