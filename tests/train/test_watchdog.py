"""The watchdog ends a run that hangs, even if its disk is full."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from train.run import watchdog
from train.run.contract import HUNG, Heartbeat
from train.run.watchdog import Watchdog


class Ended(BaseException):
    """Raised instead of calling os._exit, which would end the test's process."""


def end(code: int) -> None:
    raise Ended(code)


@pytest.mark.parametrize("broken", ["dump_traceback", "write"])
def test_a_hanging_run_exits_although_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "_exit", end)
    heartbeat = Heartbeat(tmp_path, steps=9)
    target = watchdog.faulthandler if broken == "dump_traceback" else heartbeat
    monkeypatch.setattr(target, broken, full)
    with pytest.raises(Ended) as ended:
        Watchdog(0, heartbeat)._end(9)
    assert ended.value.args == (HUNG,)


def test_a_run_that_hangs_before_its_first_step_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(watchdog, "START_SECONDS", 0.02)
    with pytest.raises(Ended):
        Watchdog(0, Heartbeat(tmp_path, steps=9))._watch()
    assert "no step has finished for 0.02 s" in caplog.text


def test_off_stops_the_countdown_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dog = Watchdog(0, Heartbeat(tmp_path, steps=9))
    dog._seconds = 0.01

    class Racing(threading.Event):
        def clear(self) -> None:
            dog.off()
            super().clear()

    monkeypatch.setattr(os, "_exit", end)
    dog._event = Racing()
    dog.step_finished()
    dog._watch()
