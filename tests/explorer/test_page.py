"""The page in a real browser: typed, moved, read, stopped; hostile text stays text; nothing leaves the machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from browser import CHROMIUM, Browser
from explorer_running import Running, running

from discreet.experiment.attack.scene import Scene
from discreet.explorer.menu import Menu, offer
from discreet.explorer.page_data import PageData, Setting
from discreet.explorer.reading import read

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

TYPED = "the heart was calm and the cough was dull"
HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=2</script> {{7*7}} the heart"


@pytest.fixture(scope="module")
def served(scenes: dict[str, Scene], menu: Menu) -> Iterator[Running]:
    own = Setting("dp-ie, epsilon 500", "dp-ie", {"epsilon": 500.0})
    loud = Setting("dp-sgd, epsilon 1 (of the whole training)", "dp-sgd", {"noise_multiplier": 12.5})
    stage = PageData("toy texts", scenes.__getitem__, (own, loud))
    with running(
        offer(menu, stage), lambda question, note: read(question, stage, menu, seconds=1.0, say=note)
    ) as found:
        yield found


class Page:
    """The page as a user has it before them."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser = browser
        browser.events.clear()
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=address)
        self.until("document.getElementById('protection') && document.getElementById('protection').options.length > 1")

    def until(self, code: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not self.run(code):
            assert time.monotonic() < end, (code, self.run("document.body.innerText"))
            time.sleep(0.02)

    def run(self, code: str) -> Any:
        return self.browser.run(code)

    def text(self, name: str) -> str:
        return str(self.run(f"document.getElementById('{name}').textContent"))

    def choose(self, name: str, value: str) -> None:
        self.run(
            f"(() => {{ const e = document.getElementById('{name}'); e.value = {json.dumps(value)};"
            " e.dispatchEvent(new Event('change')); })()"
        )

    def type(self, words: str) -> None:
        """Type as a keyboard does, over what stood there."""
        self.run("(() => { const e = document.getElementById('sentence'); e.focus(); e.select(); })()")
        self.browser.call("Input.insertText", text=words)

    def done(self) -> None:
        self.until("document.getElementById('busy').hidden && !document.getElementById('reading').hidden"
                   " && document.getElementById('status').textContent.startsWith('Done')")  # fmt: skip

    def readings(self) -> int:
        return int(self.run("document.getElementById('history').rows.length"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, served: Running) -> Page:
    return Page(browser, served.place.address)


def test_typed_moved_and_read(page: Page) -> None:
    page.choose("protection", "none")
    page.choose("attack", "rss")
    page.type(TYPED)
    page.until("document.getElementById('history').rows.length === 1")
    page.done()
    assert page.text("truth") == page.text("guess") == TYPED
    assert page.run("document.querySelectorAll('#guess mark').length") >= 1
    assert page.text("leak") == "100%" and page.text("epsilon").startswith("none") and page.text("bound") == "no bound"
    assert "not protected" in page.text("guarantee") and "107 candidate texts" in page.text("release")
    # the protection, then its dial with the keyboard: each change is a reading
    page.choose("protection", "dp-ie")
    page.until("document.getElementById('history').rows.length === 2")
    assert page.text("epsilon") == "8certified, replace-one" and page.text("bound").startswith("≤ ")
    page.run("document.getElementById('dial-epsilon').focus()")
    page.browser.press("End")
    page.until("document.getElementById('history').rows.length === 3")
    assert page.run("document.getElementById('dial-epsilon').getAttribute('aria-valuetext')") == "1,000"
    assert page.text("epsilon").startswith("1,000") and page.text("bound") == "≤ 100%"
    assert "weak" in page.text("epsilon") and page.run("document.querySelector('#epsilon .proven')") is None
    assert page.run("document.querySelectorAll('#curve .point').length") == 2  # one without a strength is no point
    assert "Without protection, rss: 100%" in page.text("legend")


def test_the_first_view_shows_what_noise_does(page: Page) -> None:
    page.until("document.getElementById('lesson-said').textContent")
    shares = page.run("[...document.querySelectorAll('#ladder .share')].map(e => parseFloat(e.textContent))")
    assert len(shares) == 5 and shares[0] == 100 and all(0 <= share <= 100 for share in shares)  # noise is fresh
    rungs = page.run("[...document.querySelectorAll('#ladder strong')].map(e => e.textContent)")
    epsilons = [float(words.removeprefix("epsilon ")) for words in rungs[1:]]
    assert rungs[0] == "no noise" and epsilons == sorted(epsilons, reverse=True) and epsilons[0] > 10 > epsilons[-1]
    assert page.run("[...document.querySelectorAll('#ladder meter')].map(e => e.value)")[0] == 1
    assert page.run("document.querySelectorAll('#ladder li:first-child mark').length") >= 1
    assert page.readings() == 0 and page.run("document.getElementById('sentence').value") == ""
    # an attack of the user's own comes first
    page.browser.click("#lesson-again")
    page.choose("protection", "none")
    page.choose("attack", "rss")
    page.type(TYPED)
    page.browser.click("#go")
    page.until("document.getElementById('history').rows.length === 1")
    page.done()
    page.until("!document.getElementById('lesson-again').disabled")


def test_the_curve_is_traced_and_its_points_speak(page: Page) -> None:
    page.run("document.getElementById('live').click()")
    page.choose("protection", "dp-sgd")
    page.choose("attack", "one-of-n")
    page.type(TYPED)
    assert page.readings() == 0, "nothing is read unless asked for"
    page.browser.click("#trace")
    page.until("document.querySelectorAll('#curve .point').length === 7 && document.getElementById('busy').hidden")
    assert page.run("document.querySelectorAll('#curve .line.bound').length") == 1
    page.run("document.querySelector('#curve .point').focus()")
    first = page.text("say")
    assert "dp-sgd · one-of-n, epsilon of this release 1,000: leakage " in first
    page.browser.press("ArrowRight")
    assert page.text("say") != first and page.run("document.activeElement.classList.contains('point')")
    shown = page.run(
        "[...document.querySelectorAll('#curve .point')].map(p => p.ariaLabel.match(/leakage ([\\d.]+)%/)[1])"
    )
    assert float(shown[0]) > 90 > 10 > float(shown[-1])


def test_it_starts_where_the_slider_moves_what_is_read(page: Page) -> None:
    assert page.run("document.getElementById('protection').value") == "ldp"
    assert page.run("document.getElementById('attack').value") == "rss"
    page.type(TYPED)
    page.until("document.getElementById('history').rows.length === 1")
    page.done()
    # under noise on gradients the attack is one whose success moves, not one that spells
    page.choose("protection", "dp-sgd")
    assert page.run("document.getElementById('attack').value") == "one-of-n"
    # an attack that was chosen by hand stays, where it fits
    page.choose("attack", "dager")
    page.choose("protection", "none")
    assert page.run("document.getElementById('attack').value") == "dager"


def test_a_blank_sentence_clears_the_page(page: Page) -> None:
    page.choose("protection", "none")
    page.choose("attack", "rss")
    page.type(TYPED)
    page.until("document.getElementById('history').rows.length === 1")
    page.done()
    page.type("   ")
    assert page.run("document.getElementById('reading').hidden")
    assert page.text("status") == "Type a sentence, or choose an example."
    assert TYPED not in page.run("document.body.innerText")
    assert page.run("document.getElementById('busy').hidden && document.getElementById('trace').disabled")
    page.type(TYPED)  # a reading under way is given up, and does not come back later
    page.browser.click("#go")
    page.type(" ")
    page.run("new Promise(done => setTimeout(done, 1500))")
    assert page.run("document.getElementById('reading').hidden")
    assert page.text("status") == "Type a sentence, or choose an example."


def test_a_study_s_setting_sets_the_dials(page: Page) -> None:
    page.choose("setting", "0")
    assert page.run("document.getElementById('protection').value") == "dp-ie"
    assert page.run("document.querySelector('.slider input[type=number]').value") == "500"
    assert page.run("document.getElementById('attack').selectedOptions[0].disabled") is False
    page.choose("protection", "ldp")
    assert page.run("document.getElementById('attack').value") in ("rss", "instance"), "one that fits is chosen"
    assert page.run("[...document.getElementById('attack').options].find(o => o.value === 'dager').disabled")
    assert page.run("document.getElementById('setting').value") == ""


def test_a_setting_beyond_the_slider_is_used_as_it_is(page: Page) -> None:
    page.choose("attack", "embedding-rows")
    page.choose("setting", "1")
    page.type(TYPED)
    page.browser.click("#go")
    page.done()
    assert page.run("document.querySelector('.slider input[type=number]').value") == "12.5"
    shown = page.text("epsilon")
    assert shown.startswith("0.2") and "certified, zero-out" in shown, "that of one release at noise 12.5"
    assert "of the same length and label" in page.text("bound-words")
    assert page.run("document.getElementById('assumed').offsetParent !== null"), "assumptions are seen at once"


def test_hostile_text_is_text_and_nothing_leaves_the_machine(page: Page, served: Running) -> None:
    page.choose("protection", "none")
    page.choose("attack", "rss")
    page.type(HOSTILE)
    page.browser.click("#go")
    page.until("document.getElementById('history').rows.length >= 1")
    page.done()
    page.choose("attack", "one-of-n")  # here the sentence itself is shown, as no text is read
    page.until("document.getElementById('truth').textContent.startsWith('<img src=x')")
    page.run("new Promise(done => setTimeout(done, 200))")
    assert page.run("typeof window.hacked") == "undefined" and page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 1
    # even a script that got into the page would be stopped by the policy
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 5\">')")
    page.run("(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 6';"
             " document.body.append(s); })()")  # fmt: skip
    assert page.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'stopped')") == "stopped"
    page.run("new Promise(done => setTimeout(done, 200))")
    assert page.run("typeof window.hacked") == "undefined"
    own = (f"http://127.0.0.1:{served.place.port}/", "data:", "about:")
    sent = [url for url in page.browser.requests() if not url.startswith(own)]
    assert sent == [] or sent == ["http://127.0.0.1:9/"]  # what the policy stopped is reported, and not sent
    assert all(served.place.key not in url for url in page.browser.requests()), "the key is never in an address sent"


def test_bad_input_is_answered_in_the_page(page: Page) -> None:
    page.browser.click("#go")
    assert "Type one" in page.text("status") and page.run("document.getElementById('status').className") == "refused"
    page.run("document.getElementById('live').click()")
    page.type(TYPED)
    page.choose("protection", "dp-sgd")
    page.run("(() => { const e = document.querySelector('.slider input[type=number]'); e.value = '-3';"
             " e.dispatchEvent(new Event('input')); })()")  # fmt: skip
    page.run("document.getElementById('form').requestSubmit = null")
    page.run("document.getElementById('form').dispatchEvent(new Event('submit', {cancelable: true}))")
    page.until("document.getElementById('status').textContent.includes('Expected epsilon to be a number in')")
    assert "Move the slider" in page.text("status") and page.run("document.getElementById('busy').hidden")


def test_a_wrong_key_is_answered_in_the_page(browser: Browser, served: Running) -> None:
    for address in (f"http://127.0.0.1:{served.place.port}/", f"http://127.0.0.1:{served.place.port}/#wrong"):
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=address)
        end = time.monotonic() + 120
        while not browser.run("document.getElementById('problem') && !document.getElementById('problem').hidden"):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert "Open the full printed address" in browser.run("document.body.innerText")


def test_a_reading_can_be_stopped_and_the_next_one_runs(page: Page, served: Running) -> None:
    page.run("document.getElementById('live').click()")
    page.choose("protection", "none")
    page.choose("attack", "lamp")
    page.type(TYPED)
    page.browser.click("#go")
    page.until("!document.getElementById('stop').disabled && /s$/.test(document.getElementById('status').textContent)")
    page.run("document.getElementById('stop').click()")
    page.until("document.getElementById('status').textContent.startsWith('Stopped')")
    end = time.monotonic() + 120
    while served.worker.busy:
        assert time.monotonic() < end
        time.sleep(0.02)
    page.choose("attack", "rss")
    page.browser.click("#go")
    page.done()
    assert page.readings() == 1


def test_it_is_named_for_a_screen_reader_and_fits_a_telephone(page: Page) -> None:
    page.choose("protection", "dp-sgd")
    assert page.run("document.querySelectorAll('h1').length") == 1
    assert page.run(
        "[...document.querySelectorAll('input, select, textarea')].every(e => e.labels.length || e.ariaLabel)"
    )
    assert page.run("[...document.querySelectorAll('button')].every(b => b.textContent.trim())")
    assert page.run("document.getElementById('status').getAttribute('aria-live')") == "polite"
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(ids)) == len(ids)
    page.browser.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    assert page.run("document.documentElement.scrollWidth") <= 360
    page.browser.call("Emulation.clearDeviceMetricsOverride")


def test_light_and_dark_are_legible(page: Page) -> None:
    contrast = """(() => {
      const part = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
      const lum = c => {
        const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(part);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const of = s => getComputedStyle(document.querySelector(s));
      const ratio = (a, b) => {
        const [x, y] = [lum(a), lum(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05);
      };
      const card = of('.card').backgroundColor;
      return [ratio(of('.small').color, of('body').backgroundColor), ratio(of('.words').color, card),
              ratio(of('textarea').color, of('textarea').backgroundColor), ratio(of('.check').color, card),
              ratio(of('button.main').color, of('button.main').backgroundColor)];
    })()"""
    for scheme in ("light", "dark"):
        page.browser.scheme(scheme)
        assert min(page.run(contrast)) >= 4.5, scheme
    page.browser.scheme("light")
