"""Print a report to PDF with Chromium or a browser made from it, if this machine has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from discreet.core.errors import ExtraError, OutputError
from discreet.core.files import write_atomic

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
SECONDS = 120.0


def find_browser() -> str:
    """Return the path of a browser that can print to PDF; raise an error with the remedy if there is none."""
    for name in BROWSERS:
        if (path := shutil.which(name)) is not None:
            return path
    raise ExtraError(
        "Expected Chromium, Chrome or Edge on the PATH to write a PDF, got none of them. Install Chromium, or open "
        "report.html in any browser and print it to a PDF."
    )


def write_pdf(page: Path, pdf: Path, seconds: float = SECONDS) -> None:
    """Print an HTML page to a PDF file; every fold of the page is open on paper.

    The browser runs without a window, with a profile of its own that is deleted afterwards, and without network.

    Guarantee: none; the PDF shows what the page shows and is readable by its owner only.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="discreet-pdf-") as folder:
        printed = Path(folder) / "page.pdf"
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={printed}",
            page.resolve().as_uri(),
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium does not start as root with its sandbox
        try:
            done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise _failed(browser, f"it did not finish within {seconds:g} seconds") from None
        except OSError as error:
            raise _failed(browser, str(error)) from None
        if done.returncode or not printed.exists() or not printed.stat().st_size:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise _failed(browser, f"it ended with status {done.returncode} ({' '.join(last)})")
        write_atomic(pdf, printed.read_bytes())


def _failed(browser: str, why: str) -> OutputError:
    return OutputError(
        f"Expected {browser} to print the report, but {why}. Open report.html in a browser and print it to a PDF."
    )
