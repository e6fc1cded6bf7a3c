"""What the tests of modules share."""

import os
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import python_env
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import WorkerPaths


@pytest.fixture(autouse=True)
def own_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test leave on this computer what it has seen of environments."""
    monkeypatch.setattr(python_env, "CHECKED", tmp_path / "seen-since-boot")


@pytest.fixture
def paths(tmp_path: Path) -> WorkerPaths:
    """The directories of a worker on which the run ``mine`` was launched."""
    found = WorkerPaths(tmp_path / "opt", tmp_path / "state", tmp_path / "etc")
    found.run_dir("mine").mkdir(parents=True)
    found.unit_dir("mine").mkdir(parents=True)
    return found


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl, first in PATH, that shows no active run. A test may replace its text."""
    program = tmp_path / "tools/systemctl"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program
