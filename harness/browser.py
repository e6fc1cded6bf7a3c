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
    return [path for name in NAMES if (path := shutil.which(name))]


class BrowserError(Exception):
    """Error: the browser exited, did not respond, or returned an error."""


class Browser:
    """A running browser with one tab; ``errors`` lists the errors of all opened pages.

    ``to_browser`` and ``from_browser`` are the file descriptors of the protocol's pipes.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.errors: list[str] = []
        self._to_browser, self._from_browser = to_browser, from_browser
        self._buffer, self._events = b"", []
        self._last_id, self._tab = 0, ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result. Raises BrowserError."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        message |= {"sessionId": self._tab} if self._tab else {}
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._last_id:
                if "error" in reply:
                    raise BrowserError(f"{method}: {reply['error']}")
                return reply["result"]

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
        reply = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise BrowserError(f"{script}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def picture(self, path: Path, *, is_whole: bool = False) -> None:
        """Write a screenshot of the window, or of the whole page if ``is_whole``, as a PNG file."""
        reply = self.ask("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(reply["data"]))

    def _next(self) -> dict[str, Any]:
        """Return the next message; if it is an event, record the event's name and error."""
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from_browser], [], [], deadline - time.monotonic())
            chunk = os.read(self._from_browser, 1 << 20) if ready else b""
            if not chunk:
                failure = "exited unexpectedly" if ready else f"sent no reply in {TIMEOUT_S:.0f} s"
                raise BrowserError(f"the browser {failure}")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        event = message.get("method", "")
        self._events.append(event)
        if event == "Runtime.exceptionThrown":
            self.errors.append(str(message["params"]["exceptionDetails"]))
        if event == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        return message


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Run the browser ``program`` in a temporary directory, until the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser_input, our_output = os.pipe()
        our_input, browser_output = os.pipe()
        # The browser expects its ends of the pipes at descriptors 3 and 4, where the DUP2 actions
        # below put them. Move both ends to 10 or higher first: if os.pipe() had chosen 3 or 4 for
        # one of them, the first DUP2 could overwrite the other end.
        browser_ends = [
            fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
            for descriptor in (browser_input, browser_output)
        ]
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        process = os.posix_spawn(
            program,
            [program, *flags, "--remote-debugging-pipe", "about:blank"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, browser_ends[0], 3),
                (os.POSIX_SPAWN_DUP2, browser_ends[1], 4),
            ],
            setpgroup=0,
        )
        for descriptor in (*browser_ends, browser_input, browser_output):
            os.close(descriptor)
        try:
            yield Browser(our_output, our_input)
        finally:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(our_output)
            os.close(our_input)
