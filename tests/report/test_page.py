from __future__ import annotations

import html
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from browser import CHROMIUM, Browser
from sample import NOISES, NOTE, verdict, write_sample

from discreet.cli.main import main
from discreet.core.errors import DataError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.report.figures import noise_curves
from discreet.report.page import cell, write_report
from discreet.report.reading import pieces
from discreet.report.tables import blanks
from discreet.report.texts import readings
from discreet.report.words import at_most, badge_of, caveats, caveats_of, verdict_of
from discreet.study.file import Goal
from discreet.study.frontier import Measured, Point
from discreet.study.result import read_result
from discreet.study.sweep import FAILURES

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


class Outline(HTMLParser):
    """The elements of a page, and what an attacker's text would have to be to be one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("report") / "s"
    write_sample(made)
    write_report(made)
    for name in ("report.html", "report.md", "model_card.md"):
        assert (made / name).stat().st_mode & 0o077 == 0, "it shows private texts"
    return made


def test_the_recommendation_keeps_the_ceiling_and_says_so(folder: Path) -> None:
    found = read_result(folder)
    assert found.recommended is not None
    bounds = {p.label: p.leakage["one-of-n/identified"].bound for p in found.points}
    better = [p for p in found.points if (bounds[p.label] or 1.0) <= 0.1]
    assert found.recommended in better
    assert found.recommended.utility["accuracy"].value == max(p.utility["accuracy"].value for p in better)
    assert len(verdict_of(found)) == 3
    assert found.recommended.label in verdict_of(found)[1]
    assert "proven for every attack on all 300 updates of the training" in verdict_of(found)[1]
    assert "always answering the most frequent class: 0.400" in verdict_of(found)[1]


def test_noise_by_risk_is_shown_for_the_ceiling_it_was_weighed_for_alone(tmp_path: Path) -> None:
    write_sample(tmp_path, seeds=1)
    (tmp_path / "risk.json").write_text(json.dumps([{"ceiling": 0.1}, {"ceiling": 0.05}]))
    assert read_result(tmp_path).noise == [{"ceiling": 0.1}]
    study = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**study, "goal": {"leakage": "dager/rouge_l", "ceiling": 0.1}}))
    assert read_result(tmp_path).noise == []


def test_what_is_proven_is_rounded_up_everywhere(tmp_path: Path) -> None:
    write_sample(tmp_path, seeds=1)
    path = tmp_path / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["guarantee"] is not None:
            line["guarantee"]["epsilon"] = 2.3421
            line["details"]["roc"]["bound"] = [0.12341] * 5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    proven = {"event": "one release", "noise": 1.96541, "limit": 0.04941, "sentence": "certified words"}
    measured = {**proven, "noise": 1.23451, "limit": 0.04931, "sentence": "measured words"}
    row = {"ceiling": 0.1, "certified": proven, "measured": measured, "ratio": 1.6}
    (tmp_path / "risk.json").write_text(json.dumps([row]))
    written = write_report(tmp_path)
    page, text = written.page.read_text(), written.markdown.read_text()
    assert "ε 2.343<" in page and "ε 2.342<" not in page and "epsilon 2.343, delta" in page
    assert "proven at most 0.124" in page and "proven at most 0.123" not in page
    for figure in ("1.966", "5%", "1.235"):
        assert f">{figure}<" in page and f"| {figure} |" in text


def test_hostile_text_is_text_and_never_an_element(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    outline = Outline()
    outline.feed(page)
    assert sum(tag == "script" for tag, _ in outline.tags) == 1
    assert not any(tag in {"img", "iframe", "object", "embed", "form", "base"} for tag, _ in outline.tags)
    for tag, attributes in outline.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert not any((value or "").startswith(("http", "javascript", "//")) for value in attributes.values())
        assert "style" not in attributes  # the policy allows no style outside the sheet
    assert "49" not in re.findall(r"\{\{.*?\}\}", page)
    assert "{{ 7 * 7 }}" in page


def test_the_page_allows_only_its_own_script_and_style(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1] or "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert page.index("Content-Security-Policy") < page.index("<title>")


def test_the_study_on_the_page_is_the_study(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    printed = html.unescape(page.partition('<pre id="study" tabindex="0">')[2].partition("</pre>")[0])
    assert printed == read_result(folder).toml
    assert tomllib.loads(printed)["goal"]["release"] == "training"


def test_markdown_says_the_same_and_cannot_be_broken_out_of(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert read_result(folder).recommended.label in text  # type: ignore[union-attr]
    assert "<script>window" not in text.replace("```toml", "").partition("## Study")[0]
    table = [line for line in text.splitlines() if line.startswith("| dp-sgd")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table if "certified, " in line}) == 1
    card = (folder / "model_card.md").read_text()
    assert "Recommended setting" in card
    assert "Certified" in card


def write_without_dager(folder: Path, details: dict[str, object]) -> None:
    """Write the sample, but for what DAGER read under directional DP-SGD, with other details there."""
    write_sample(folder)
    path = folder / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["settings"]["protect"]["name"] == "dir-dp-sgd":
            line["leakages"] = [one for one in line["leakages"] if not one["metric"].startswith("dager")]
            line["details"] |= details
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_cell_without_a_figure_says_why_on_the_spot(tmp_path: Path) -> None:
    write_without_dager(tmp_path, {"not_attacked": {"dager": "A batch of one <b> cannot be mixed."}})
    found = read_result(tmp_path)
    cells, notes = blanks(found)
    assert notes == ["A batch of one <b> cannot be mixed."]
    assert set(cells.values()) == {1} and len(cells) == len(NOISES)
    written = write_report(tmp_path)
    page = written.page.read_text()
    assert page.count('href="#note1"') == len(NOISES) and page.count('id="note1"') == 1
    assert page.count("A batch of one &lt;b&gt; cannot be mixed.") >= len(NOISES)  # for screen readers too
    text = written.markdown.read_text()
    assert "not run (1)" in text and "1. A batch of one &lt;b&gt;" in text


def test_a_legend_names_what_is_drawn_and_nothing_else(tmp_path: Path) -> None:
    write_without_dager(tmp_path, {"roc": {}, "epsilon_over_training": []})
    page = write_report(tmp_path).page.read_text()
    figures = page.split('<svg class="figure"')[1:]
    told = {}
    for text in figures:
        title = text.partition("<title")[2].partition(">")[2].partition("<")[0]
        drawn = set(re.findall(r'class="mark (s\d)" role="listitem"', text))
        shown = re.findall(r"<li>(.*?)</li>", text.partition('<ul class="legend">')[2].partition("</ul>")[0])
        assert {found for one in shown for found in re.findall(r'class="mark (s\d)"', one)} == drawn, title
        told[title.partition(";")[0]] = [re.sub("<.*?>", "", one) for one in shown]
    assert told.pop("accuracy against one-of-n: identified among the candidates, from all updates of the training") == [
        "none", "dp-sgd", "dir-dp-sgd", "frontier", "ceiling", "constant answer",
    ]  # fmt: skip
    words = "dager: words read in the right order (ROUGE-L)"
    assert told.pop(f"accuracy against {words}") == ["none", "dp-sgd", "frontier", "constant answer"]
    assert told.pop(f"{words} against noise_multiplier of dp-sgd") == ["dp-sgd", "measured", "random guessing"]
    assert told.pop("epsilon spent over training") == ["dp-sgd"]
    assert "dir-dp-sgd" not in told.pop("a threshold on the loss: true-positive rate against false-positive rate")
    assert len(told) == 2 and all("certified bound" in lines for lines in told.values())


def test_two_kinds_of_one_protection_have_names_notes_and_curves_of_their_own(tmp_path: Path) -> None:
    write_sample(tmp_path, seeds=1, protections=("dp-sgd",))
    path = tmp_path / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    other = json.loads(json.dumps(lines[1:]))
    for number, line in enumerate(other):
        line["key"] = f"other{number}"
        line["settings"]["protect"]["clipping"] = "per-layer"
        line["leakages"] = [one for one in line["leakages"] if not one["metric"].startswith("dager")]
        line["details"]["not_attacked"] = {"dager": "Not on layers."}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines + other))
    found = read_result(tmp_path)
    assert len({point.label for point in found.points}) == len(found.points) == 1 + 2 * len(NOISES)
    cells, _ = blanks(found)
    assert {label for label, _ in cells} == {f"dp-sgd, noise multiplier {n:g}, clipping per-layer" for n in NOISES}
    drawn = noise_curves(found.points, "one-of-n/identified")
    assert [name for name, _ in drawn] == ["dp-sgd", "dp-sgd, clipping per-layer"]
    assert all(len(figure.marks) == len(NOISES) for _, figure in drawn)
    assert "dp-sgd, clipping per-layer</li>" in write_report(tmp_path).page.read_text()


def test_of_several_guesses_at_a_text_under_one_setting_the_worst_is_shown(tmp_path: Path) -> None:
    write_sample(tmp_path, seeds=1)
    path = tmp_path / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["details"]["texts"].insert(0, {"attack": "dager", "truth": NOTE, "guess": "nothing of it", "batch": 0})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    group = next(group for group in readings(read_result(tmp_path)) if group["truth"] == NOTE)
    labels = [row["label"] for row in group["rows"]]
    assert labels.count("none") == 1 and group["rows"][labels.index("none")]["share"] == 1.0


def test_a_verdict_says_how_little_it_rests_on() -> None:
    def point(name: str, n: int) -> Point:
        leak = {"lamp/rouge_l": Measured(0.0, 0.0, 0.2, seeds=1, n=n)}
        return Point(name, {"name": name}, {"accuracy": Measured(0.8, 0.7, 0.9, seeds=1)}, leak, None)

    goal = Goal("lamp/rouge_l", floor=0.5)
    assert "measured on one text only, too few to rely on" in verdict([point("a", 1)], point("a", 1), goal)[1]
    told = verdict([point("a", 40)], point("a", 40), goal)[1]
    assert "measured on 40 texts, on one release)" in told and "too few" not in told
    assert "is 0% on average, at most 20%" in told and "of the time" not in told
    assert "of 1 text in order" in verdict([point("none", 1)], None, goal)[0]


def test_a_verdict_says_when_a_ceiling_is_missed_for_want_of_texts_alone() -> None:
    def point(value: float, high: float) -> Point:
        leak = {"lamp/rouge_l": Measured(value, 0.0, high, seeds=1, n=1)}
        return Point("noise 2", {"name": "dp-sgd"}, {"accuracy": Measured(0.8, 0.7, 0.9, seeds=1)}, leak, None)

    goal = Goal("lamp/rouge_l", ceiling=0.3)
    told = verdict([point(0.13, 0.991)], None, goal)[1]
    assert "is shown to keep the rule" in told and "noise 2 reaches 13%, but that may be up to 100%" in told
    assert "one text only, too few to rely on" in told
    assert "is shown to keep" not in verdict([point(0.5, 0.991)], None, goal)[1]


def test_the_verdict_says_which_other_attack_reads_more_under_the_setting_chosen() -> None:
    def leak(value: float) -> Measured:
        return Measured(value, value - 0.05, value + 0.05, seeds=1, n=40)

    useful = {"accuracy": Measured(0.8, 0.7, 0.9, seeds=1)}
    goal = Goal("lamp/rouge_l", ceiling=0.3)
    for other, value, warned in (
        ("draws/rouge_l", 0.6, True),
        ("draws/rouge_l", 0.28, False),
        ("draws/rouge_1", 0.6, False),
    ):
        point = Point("a", {"name": "a"}, useful, {"lamp/rouge_l": leak(0.2), other: leak(value)}, None)
        told = " ".join(caveats(point, goal, "accuracy"))
        assert ("draws reaches 60% under this setting by the same metric: name draws in the goal." in told) is warned


def plain(text: str) -> str:
    """Return a text of a page or of Markdown without its escapes, on one line."""
    return " ".join(html.unescape(text).replace("\\", "").split())


@pytest.mark.parametrize("source", ["notes", "own.csv"])
def test_every_output_has_the_same_caveats(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files, what is printed, and the page that the PDF is printed from; on text of one's own choosing costs."""
    write_sample(tmp_path, seeds=1)
    study = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**study, "data": {**study["data"], "source": source}}))
    (tmp_path / FAILURES).write_text(json.dumps({"dp-sgd 9, seed 0": "out of memory"}))
    printed: list[Path] = []
    monkeypatch.setattr("discreet.cli.pdf.find_browser", lambda: "a browser")
    monkeypatch.setattr("discreet.cli.pdf.write_pdf", lambda page, pdf: printed.append(page))
    assert main(["report", str(tmp_path), "--pdf"]) == 0
    terminal = capsys.readouterr().out
    assert main(["report", str(tmp_path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    expected = caveats_of(read_result(tmp_path))
    assert any(text.startswith("1 trial failed") for text in expected) and values["caveats"] == list(expected)
    choosing = "Choosing costs nothing here" if source == "notes" else "1 of them has no guarantee: the choice has no"
    assert choosing in expected[-1]
    pages = {name: plain((tmp_path / name).read_text()) for name in ("report.html", "report.md", "model_card.md")}
    assert printed == [tmp_path / "report.html"]
    for name, text in {**pages, "the terminal": plain(terminal)}.items():
        assert [one for one in expected if one not in text] == [], name


def test_a_proven_share_is_never_rounded_down() -> None:
    for bound in (0.0421, 0.1201, 0.000441, 0.9501):
        leak = {"one-of-n/identified": Measured(0.0, 0.0, 0.01, seeds=1, n=20_000, bound=bound)}
        point = Point("a", {"name": "a"}, {"accuracy": Measured(0.8, 0.7, 0.9, seeds=1)}, leak, None)
        told = verdict([point], point, Goal("one-of-n/identified", ceiling=0.999))[1]
        found = re.search(r"at most ([0-9.]+)% \(.*proven for every attack", told)
        assert found and bound <= float(found[1]) / 100 <= 1.12 * bound
        assert bound <= float(at_most(bound)) < bound + 0.001


def test_cells_are_plain() -> None:
    assert cell("a|b\n<i>`*") == "a\\|b &lt;i&gt;\\`\\*"


def test_words_are_marked_in_order() -> None:
    marked = [piece.text for piece in pieces("red the cat the end", "the cat end") if piece.right]
    assert marked == ["the cat", "end"]
    assert pieces("", "a") == []
    assert [piece.text for piece in pieces("sick: ROHAN fujita 12", "rohan fujita, aged") if piece.right] == [
        "ROHAN fujita"
    ]
    assert [piece.right for piece in pieces(NOTE, NOTE)] == [True]


def test_a_folder_without_trials_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="discreet calibrate"):
        write_report(tmp_path)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@in_browser
def test_nothing_is_requested_and_no_hostile_script_runs(folder: Path, browser: Browser) -> None:
    browser.open(folder / "report.html")
    browser.run("new Promise(done => setTimeout(done, 300))")
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in browser.requests()) == 1
    assert browser.run("typeof window.hacked") == "undefined"
    # even a script that got into the page would be stopped by its policy
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 5\">')")
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 6';"
        " document.body.append(s); })()"
    )
    browser.run("new Promise(done => setTimeout(done, 200))")
    assert browser.run("typeof window.hacked") == "undefined"


@in_browser
def test_a_heading_sorts_its_column_both_ways(folder: Path, browser: Browser) -> None:
    browser.open(folder / "report.html")
    rows = "[...document.querySelector('#settings table.sorts').tBodies[0].rows]"
    column = f"{rows}.map(r => Number(r.cells[1].dataset.v))"
    browser.click("#settings table.sorts thead th:nth-child(2) button")
    rising = browser.run(column)
    assert rising == sorted(rising)
    assert browser.run("document.querySelector('#settings th:nth-child(2)').getAttribute('aria-sort')") == "ascending"
    browser.run("document.querySelector('#settings th:nth-child(2) button').focus()")
    browser.press("Enter")
    assert browser.run(column) == sorted(rising, reverse=True)
    assert "falling" in browser.run("document.getElementById('told').textContent")
    # what has no figure goes last, whichever way
    epsilon = f"{rows}.map(r => r.cells[4].dataset.v)"
    for _ in range(2):
        browser.click("#settings table.sorts thead th:nth-child(5) button")
        assert browser.run(epsilon)[-1] == ""


@in_browser
def test_attacks_are_switched_by_click_and_by_keyboard(folder: Path, browser: Browser) -> None:
    browser.open(folder / "report.html")
    shown = "[...document.querySelectorAll('[role=tabpanel]')].map(p => !p.hidden)"
    assert browser.run(shown) == [True, False]
    browser.click("#tp1")
    assert browser.run(shown) == [False, True]
    browser.run("document.getElementById('tp1').focus()")
    browser.press("ArrowRight")
    assert browser.run(shown) == [True, False]
    assert browser.run("document.activeElement.id") == "tp0"
    assert browser.run("document.getElementById('tp1').tabIndex") == -1


@in_browser
def test_marks_say_what_they_are_from_the_keyboard(folder: Path, browser: Browser) -> None:
    browser.open(folder / "report.html")
    browser.run("document.querySelector('#p0 svg.figure .mark').focus()")
    first = browser.run("document.querySelector('#p0 .say').textContent")
    assert "accuracy" in first
    browser.press("ArrowRight")
    second = browser.run("document.querySelector('#p0 .say').textContent")
    assert second != first
    assert browser.run("document.querySelectorAll('#p0 svg.figure .mark[tabindex=\"0\"]').length") >= 1
    assert browser.run("document.activeElement.classList.contains('mark')")


@in_browser
def test_light_and_dark_are_legible_and_can_be_switched(folder: Path, browser: Browser) -> None:
    contrast = """(() => {
      const part = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
      const lum = c => {
        const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(part);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (a, b) => {
        const [x, y] = [lum(a), lum(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05);
      };
      const of = s => getComputedStyle(document.querySelector(s));
      const page = of('body').backgroundColor, card = of('.card').backgroundColor;
      return [ratio(of('body').color, page), ratio(of('.lead').color, page), ratio(of('.share').color, card),
              ratio(of('mark').color, of('mark').backgroundColor), ratio(of('.badge').color, card)];
    })()"""
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.open(folder / "report.html")
        assert min(browser.run(contrast)) >= 4.5, scheme
    before = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.click("#theme")
    assert browser.run("getComputedStyle(document.body).backgroundColor") != before
    browser.scheme("light")


CUT = """(() => {
  const edge = document.documentElement.clientWidth + 1;
  const seen = (e) => e.getClientRects().length && !e.closest('.unseen, .skip, thead');
  const out = [...document.querySelectorAll('main *')].filter(e => seen(e) && e.getBoundingClientRect().right > edge);
  const boxes = [...document.querySelectorAll('.wide, pre, .card, nav ul')].filter(seen);
  return [...out, ...boxes.filter(e => e.scrollWidth > e.clientWidth + 1)].map(e => e.outerHTML.slice(0, 120));
})()"""


@in_browser
def test_nothing_is_cut_on_a_telephone_folded_or_open(folder: Path, browser: Browser) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    browser.open(folder / "report.html")
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run(CUT) == []
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert browser.run(CUT) == []
    browser.call("Emulation.clearDeviceMetricsOverride")


@in_browser
def test_the_answer_fits_the_first_screen_and_the_folded_page_is_short(folder: Path, browser: Browser) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(folder / "report.html")
    assert browser.run("document.getElementById('verdict').getBoundingClientRect().bottom") <= 900
    assert browser.run("document.documentElement.scrollHeight") <= 6000
    assert browser.run(CUT) == []  # the tables fit their box
    browser.call("Emulation.clearDeviceMetricsOverride")


@in_browser
def test_paper_has_no_folds_and_the_page_is_folded_again_afterwards(folder: Path, browser: Browser) -> None:
    browser.open(folder / "report.html")
    folded = "document.querySelectorAll('details:not([open]):not(.bulk)').length"
    before = browser.run(folded)
    assert before >= 5
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(folded) == 0
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(folded) == before


@in_browser
def test_a_link_to_a_footnote_opens_its_list(tmp_path: Path, browser: Browser) -> None:
    write_without_dager(tmp_path, {"not_attacked": {"dager": "Not mixed."}})
    browser.open(write_report(tmp_path).page)
    assert not browser.run("document.getElementById('note1').closest('details').open")
    browser.run("(() => { location.hash = 'note1'; return new Promise(done => setTimeout(done, 50)); })()")
    assert browser.run("document.getElementById('note1').closest('details').open")


@in_browser
def test_headings_landmarks_and_names_are_there_for_a_screen_reader(folder: Path, browser: Browser) -> None:
    browser.open(folder / "report.html")
    assert browser.run("document.querySelectorAll('h1').length") == 1
    assert browser.run("document.querySelectorAll('main, nav, header, footer').length") == 4
    assert browser.run("[...document.querySelectorAll('svg.figure')].every(s => s.querySelector('title'))")
    assert browser.run(
        "[...document.querySelectorAll('.mark[role=listitem]')].every(m => m.getAttribute('aria-label'))"
    )
    assert browser.run("[...document.querySelectorAll('button')].every(b => b.textContent.trim())")
    ids = browser.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(ids)) == len(ids)


def test_five_hundred_trials_stay_small_and_open(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    names = tuple(f"protection {i}" for i in range(9))
    write_sample(tmp_path / "s", seeds=8, protections=names)
    assert 8 * (1 + len(names) * len(NOISES)) >= 500
    page = write_report(tmp_path / "s").page
    assert page.stat().st_size < 5_000_000
    if CHROMIUM is not None:
        opened: Browser = request.getfixturevalue("browser")
        opened.open(page)
        assert opened.run("document.querySelectorAll('*').length") < 40_000


def test_a_setting_below_a_constant_answer_is_warned_about_and_its_baseline_is_shown(tmp_path: Path) -> None:
    write_sample(tmp_path, seeds=1)
    path = tmp_path / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]["utility"]["accuracy"] = 0.192
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = write_report(tmp_path)
    label = read_result(tmp_path).points[-1].label
    for text in (written.page.read_text(), written.markdown.read_text()):
        plain = text.replace("\\", "")
        assert f"{label} is no better than a constant answer" in plain
        assert "200 rows; always answering the most frequent class: 0.400" in plain
    assert "constant answer 0.400" in written.page.read_text()
    assert "always answering the most frequent class: 0.400" in written.card.read_text()


def test_no_epsilon_above_ten_is_green() -> None:
    def badge(epsilon: float, certified: bool = True) -> str:
        reason = None if certified else "made up"
        return badge_of(Guarantee(epsilon, 1e-5, "text", Adjacency.ZERO_OUT, "pld", certified, (), reason))

    assert badge(1.0) == badge(10.0) == "proven"
    assert badge(10.01) == "estimate"
    assert badge(23_610.0) == badge_of(None) == "none"
    assert badge(1.0, certified=False) == "estimate"
