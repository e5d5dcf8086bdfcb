"""A headless Chromium for tests, spoken to over a pipe: no driver and no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of a browser; leave the `with` block to end it."""

    def __init__(self, profile: Path, width: int = 1400, height: int = 1000) -> None:
        to_us, from_browser = os.pipe()
        to_browser, from_us = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        command = (
            f"exec {CHROMIUM} --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
            f"--disable-background-networking --disable-component-update --hide-scrollbars "
            f"--user-data-dir={profile} --window-size={width},{height} --remote-debugging-pipe about:blank "
            f"3<&{to_browser} 4>&{from_browser}"
        )
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", command], pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.read, self.write = to_us, from_us
        self.rest = b""
        self.count = 0
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.read)
        os.close(self.write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; what happens meanwhile is kept in `events`."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session is not None and not method.startswith("Target."):
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next(60)
            if found.get("id") == self.count:
                assert "error" not in found, f"{method}: {found['error']}"
                return dict(found["result"])
            self.events.append(found)

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            self.rest += os.read(self.read, 1 << 20)
        one, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(one))

    def open(self, path: Path) -> float:
        """Open a file and return after how many seconds its load event came."""
        self.events.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(60))
        return time.monotonic() - began

    def run(self, code: str) -> Any:
        """Return what an expression is worth on the page."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key as a user does."""
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36}
        text = {"text": "\r"} if key == "Enter" else {}
        values = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **values, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def click(self, selector: str) -> None:
        """Click in the middle of an element with the mouse."""
        self.run(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', behavior: 'instant'}})"
        )
        box = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def screenshot(self, path: Path, width: int, height: int, scale: float = 1.0, mobile: bool = False) -> None:
        """Draw the page at a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def scheme(self, value: str) -> None:
        """Say what the system prefers: light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def paper(self, path: Path) -> None:
        """Print the page to a PDF file."""
        found = self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(found["data"]))
