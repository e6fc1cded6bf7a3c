"""A headless Chromium that opens pages, driven by the DevTools protocol over a pipe.

Protocol: https://chromedevtools.github.io/devtools-protocol. With ``--remote-debugging-pipe`` the
browser reads messages from file descriptor 3 and writes them to 4, each ended by a NUL.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60.0


def installed() -> list[str]:
    """Return the paths of the browsers on the PATH."""
    return [found for name in NAMES if (found := shutil.which(name))]


class BrowserError(Exception):
    """Error: the browser exited, did not respond, or returned an error."""


class Browser:
    """A running browser with one tab; ``errors`` lists the errors of all opened pages.

    ``to_browser`` and ``from_browser`` are the file descriptors of the protocol's pipes.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.errors: list[str] = []
        self._to, self._from = to_browser, from_browser
        self._buffer, self._events = b"", []
        self._last, self._tab = 0, ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result. Raises BrowserError."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        message |= {"sessionId": self._tab} if self._tab else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._last:
                if "error" in found:
                    raise BrowserError(f"{method}: {found['error']}")
                return found["result"]

    def open(
        self, url: str, width: int = 1280, height: int = 900, *, is_dark: bool = False
    ) -> None:
        """Open a page in a window of this size, and wait until it is loaded."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.ask("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._next()

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; await a promise. Raises BrowserError."""
        found = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def picture(self, path: Path, *, is_whole: bool = False) -> None:
        """Write a screenshot of the window, or of the whole page if ``is_whole``, as a PNG file."""
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        """Return the next message; if it is an event, record the event's name and error."""
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], deadline - time.monotonic())
            more = os.read(self._from, 1 << 20) if ready else b""
            if not more:
                raise BrowserError("the browser exited unexpectedly" if ready else "no answer")
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(text)
        event = found.get("method", "")
        self._events.append(event)
        if event == "Runtime.exceptionThrown":
            self.errors.append(str(found["params"]["exceptionDetails"]))
        if event == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
            self.errors.append(found["params"]["entry"]["text"])
        return found


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Run the browser ``program`` in a temporary directory, until the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # Duplicate the browser's ends of the pipes to descriptors from 10 on: later they become the
        # browser's descriptors 3 and 4, which must not be in use.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        process = os.posix_spawn(
            program,
            [program, *flags, "--remote-debugging-pipe", "about:blank"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, ends[0], 3),
                (os.POSIX_SPAWN_DUP2, ends[1], 4),
            ],
            setpgroup=0,
        )
        for end in (*ends, theirs_in, theirs_out):
            os.close(end)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(ours_out)
            os.close(ours_in)
