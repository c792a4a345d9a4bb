"""A headless Chromium, driven over its debugging pipe: no driver program, no Python package.

Debian's package `chromium` brings it; `make tools` installs it where it is missing. It speaks the
DevTools protocol: JSON messages that end in a zero byte, on two file descriptors.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_S = 60.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--mute-audio", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def find() -> str:
    """The path of Chromium; the error says how to install it."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise FileNotFoundError("no Chromium: apt-get install chromium (Debian)")


class Browser:
    """One page of one browser, as a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lakequeue-browser-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [find(), *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]

        def descriptors() -> None:  # it reads from 3 and writes to 4
            low = [os.dup2(fd, 60 + n) for n, fd in enumerate((theirs_in, theirs_out))]
            for n, fd in enumerate(low):
                os.dup2(fd, 3 + n)

        self._process = subprocess.Popen(
            command, preexec_fn=descriptors, close_fds=False, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (theirs_in, theirs_out):
            os.close(fd)
        self._in, self._out = ours_in, ours_out
        self._rest, self._ids = b"", itertools.count(1)
        self.said: list[str] = []  # complaints on the page's console
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.bringToFront")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.write(self._out, b'{"id":0,"method":"Browser.close"}\0')
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for fd in (self._in, self._out):
            os.close(fd)
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    # ------------------------------------------------------------ for tests

    def open(self, address: str) -> None:
        """Open an address, and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 15.0) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self._true(script):
            if time.monotonic() > until:
                text = self.run("document.body.innerText")
                raise AssertionError(f"never true: {script}\n{text}")
            time.sleep(0.05)

    def _true(self, script: str) -> bool:
        try:
            return bool(self.run(script))
        except AssertionError:  # between two pages
            return False

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press one key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )  # fmt: skip

    def type(self, text: str) -> None:
        """Type a text into the focused element."""
        self.call("Input.insertText", text=text)

    def looks(self, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Set the window's size, and whether the user prefers dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """A screenshot, as PNG."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    # ------------------------------------------------------------ the protocol

    def call(self, method: str, **params: Any) -> Any:
        """Send a command to the page."""
        return self._call(method, self._session, **params)

    def _call(self, method: str, session: str | None = None, **params: Any) -> Any:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] == "error":
                self.said.append(f"{entry['text']} {entry.get('url', '')}")
        elif event.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(event["params"]["exceptionDetails"]))

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + ANSWER_S
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, until - time.monotonic()))[0]:
                raise AssertionError("the browser does not answer")
            data = os.read(self._in, 1 << 16)
            if not data:
                raise AssertionError("the browser ended")
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)
