"""The module release, which installs a pushed release on a worker."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.locks import one_at_a_time
from ansible_collections.tpufleet.core.plugins.module_utils.worker.release import (
    MANIFEST,
    release_problems,
)

from tests.collections.modules.test_release_manifest import stage_code, write_code
from tests.collections.running_modules import run_module


@pytest.fixture
def push(tmp_path, systemctl):
    """Return a function that installs the release ``push.name``, which was sent to the worker."""
    incoming = tmp_path / "incoming"
    name = stage_code(write_code(tmp_path / "code"), incoming)
    options = {"code": "x", "release": name, "incoming": str(incoming)}
    options["constants"] = {"ROOT": str(tmp_path / "opt")}

    def run(**more) -> dict:
        return run_module("release", **{**options, **more})

    run.name, run.incoming, run.releases = name, incoming, tmp_path / "opt/releases"
    return run


@pytest.fixture
def other(tmp_path) -> dict[str, str]:
    """Options to push another release than that of the fixture ``push``."""
    code, incoming = write_code(tmp_path / "other code"), tmp_path / "incoming-other"
    (code / "more.py").touch()
    return {"release": stage_code(code, incoming), "incoming": str(incoming)}


def names(releases: Path) -> set[str]:
    return {path.name for path in releases.iterdir() if path.is_dir()}


def test_pushing_the_same_release_again_changes_nothing(push):
    first, second = push(), push()

    assert (first["changed"], second["changed"]) == (True, False)
    assert first["files"] == second["files"] == 3
    assert release_problems(push.releases / push.name, push.name) == []


def test_pushing_the_same_release_again_replaces_a_damaged_one(push):
    push()
    damaged = push.releases / push.name / "train/main.py"
    damaged.chmod(0o644)
    damaged.write_text("damaged")

    assert push()["changed"]
    assert release_problems(push.releases / push.name, push.name) == []


def test_a_push_removes_the_files_of_a_killed_push(push):
    leftover = push.releases / f".{push.name}.x1y2/train"
    leftover.mkdir(parents=True)
    leftover.chmod(0o555)
    (push.releases / ".aaaa.gone").mkdir()

    push()

    assert names(push.releases) == {push.name}


def test_a_dry_run_reports_changes_and_makes_none(push):
    result = push(check=True)

    assert result["changed"]
    assert "it is not on this worker" in result["msg"]
    assert not push.releases.exists()


def test_a_transfer_without_a_manifest_is_requested_again(push):
    (push.incoming / MANIFEST).unlink()

    result = push()

    assert result["failed"]
    assert result["mismatch"]
    assert "the pushed directory has no manifest" in result["msg"]
    assert names(push.releases) == set()


def test_two_simultaneous_pushes_run_one_after_the_other(push):
    push.releases.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with one_at_a_time(push.releases.with_name("locks") / "releases"):
            other = pool.submit(push)
            with pytest.raises(TimeoutError):
                other.result(timeout=3)
            assert names(push.releases) == set()

        assert other.result()["changed"]
    assert names(push.releases) == {push.name}


def test_current_is_the_release_that_was_pushed_last(push, other):
    current = push.releases.with_name("current")

    push()
    assert current.readlink() == Path("releases") / push.name
    push(**other)
    assert current.resolve().name == other["release"]
    assert push(check=True)["changed"]
    assert current.resolve().name == other["release"]
    assert push()["changed"]
    assert current.resolve().name == push.name
    assert list(push.releases.parent.glob(".*")) == []


def test_without_an_answer_of_systemd_no_release_is_removed(push, systemctl):
    old = {f"{number:016x}" for number in range(9)}
    for name in old:
        (push.releases / name).mkdir(parents=True)
    systemctl.write_text("#!/bin/sh\necho Failed to connect to bus >&2\nexit 1\n")

    result = push()

    assert result["failed"]
    assert "Failed to connect to bus" in result["msg"]
    assert names(push.releases) == {push.name, *old}
    systemctl.write_text("#!/bin/sh\n")
    (push.releases / push.name / MANIFEST).unlink()
    assert push()["changed"]
    assert push.name in names(push.releases)
    assert len(names(push.releases)) == 5


def test_the_programs_of_runs_have_a_link_of_their_own_and_are_kept(push, other):
    push(link="programs")
    os.utime(push.releases / push.name, (0, 0))
    for number in range(9):
        (push.releases / f"{number:016x}").mkdir()

    push(**other)

    root = push.releases.parent
    assert (root / "programs").resolve().name == push.name
    assert (root / "current").resolve().name == other["release"]
    assert {push.name, other["release"]} <= names(push.releases)
    assert len(names(push.releases)) == 6
    assert not push(link="programs")["changed"]


def test_a_diff_compares_with_the_last_release_under_the_same_link(push):
    push(link="programs")

    assert push(release="0" * 16, check=True)["before"] == ""
    before = push(release="0" * 16, link="programs", check=True)["before"]
    assert "train/main.py file" in before
