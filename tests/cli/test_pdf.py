from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from browser import CHROMIUM
from sample import write_sample

from discreet.cli.main import main
from discreet.cli.pdf import find_browser, write_pdf
from discreet.core.errors import ExtraError, OutputError


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_command_prints_the_page_with_its_folds_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(tmp_path, seeds=1)
    assert main(["report", str(tmp_path), "--pdf", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answer"] == "yes" and told["command"].startswith("discreet train notes ")
    printed = Path(told["pdf"])
    content = printed.read_bytes()
    assert content.startswith(b"%PDF-") and printed.stat().st_mode & 0o077 == 0
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 4  # the folded sections are on paper


def test_without_a_browser_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sample(tmp_path, seeds=1)
    monkeypatch.setattr("discreet.cli.pdf.BROWSERS", ("no-such-browser",))
    with pytest.raises(ExtraError, match="Install Chromium"):
        find_browser()
    assert main(["report", str(tmp_path), "--pdf"]) == 2
    assert "print it to a PDF" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "report.html").exists()  # nothing is written where the request cannot be met


def test_a_browser_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho it broke >&2\nexit 3\n")
    broken.chmod(0o700)
    monkeypatch.setattr("discreet.cli.pdf.BROWSERS", (str(broken),))
    (tmp_path / "page.html").write_text("<p>a</p>")
    with pytest.raises(OutputError, match=r"status 3 \(it broke\)"):
        write_pdf(tmp_path / "page.html", tmp_path / "page.pdf")
    assert not (tmp_path / "page.pdf").exists()
