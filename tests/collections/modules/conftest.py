"""Fixtures that the tests of modules share."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import python_env, run_start
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths

HOLD = """
import os, signal, sys
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2] == "releases":
    signal.signal(signal.SIGTERM, lambda *_: held.close())
held = open(sys.argv[1])
print("holding", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(autouse=True)
def own_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use ``tmp_path`` instead of /run for checked environments and for settings of units."""
    monkeypatch.setattr(python_env, "CHECKED", tmp_path / "seen-since-boot")
    monkeypatch.setattr(run_start, "DROP_INS", tmp_path / "units")


@pytest.fixture
def paths(tmp_path: Path) -> WorkerPaths:
    """The directories of a worker on which the run ``mine`` was launched."""
    worker_paths = WorkerPaths(tmp_path / "opt", tmp_path / "state", tmp_path / "etc")
    worker_paths.run_dir("mine").mkdir(parents=True)
    worker_paths.unit_dir("mine").mkdir(parents=True)
    return worker_paths


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl, first in PATH, that lists no active run; a test may replace the script."""
    program = tmp_path / "tools/systemctl"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


@pytest.fixture
def holder() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a process that holds a device open until the test ends.

    The argument ``behavior`` says what the process does on SIGTERM: it exits (``holds``), only
    closes the device (``releases``), or ignores the signal (``stubborn``).
    """
    started = []

    def hold(device: Path, behavior: str = "holds") -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(device), behavior], stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        assert child.stdout.readline() == "holding\n"
        return child

    yield hold
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()
