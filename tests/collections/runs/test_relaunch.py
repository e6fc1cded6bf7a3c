"""Files that a relaunch needs on the controller, and variables that it passes to playbooks."""

import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import LaunchSpec
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.actor import (
    plays_of,
    relaunch_variables,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import Action
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import (
    Observation,
    ProcessStatus,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.release_cache import (
    cache_lock,
    cached_lock_path,
    cached_release_path,
    missing_cached_file,
)

from tests.collections.runs.observations import POD
from tests.collections.runs.records import LOCK, LOCK_TEXT, RELEASE, keep_release, run_record

STATE_DIR = Path("/home/me/.tpufleet")


@pytest.fixture
def launch(tmp_path: Path) -> LaunchSpec:
    """A launch whose code and lock file this controller has in tmp_path."""
    keep_release(tmp_path)
    return run_record().launch


def test_a_relaunch_needs_the_code_and_the_lock_file_that_were_launched(launch, tmp_path):
    lock = cached_lock_path(tmp_path, launch.requirements)

    assert missing_cached_file(launch, tmp_path) == ""
    lock.write_bytes(b"\n" + LOCK_TEXT + b"\n\n")
    assert missing_cached_file(launch, tmp_path) == ""
    lock.write_bytes(b"jax==0.2")
    assert missing_cached_file(launch, tmp_path) == str(lock)
    lock.unlink()
    assert missing_cached_file(launch, tmp_path) == str(lock)
    shutil.rmtree(cached_release_path(tmp_path, launch.release))
    assert missing_cached_file(launch, tmp_path) == str(
        cached_release_path(tmp_path, launch.release)
    )


@pytest.mark.parametrize(
    ("process", "needs_setup"),
    [
        ({}, False),
        ({"is_set_up": False}, True),
        ({"has_environment": False}, True),
    ],
)
def test_a_relaunch_sets_up_workers_that_an_older_version_set_up(process, needs_setup):
    set_up = ProcessStatus("pod-w0", RunState.LOST)
    processes = (set_up, replace(set_up, host="pod-w1", **process))
    observed = Observation("READY", processes, workers=2, address="pod")

    plays = plays_of(Action.LAUNCH, run_record(), observed, STATE_DIR, "gs://b", fence=1)

    playbooks = [name for play in plays for name in play.playbooks]
    setup = ["setup.yml", "playbooks/push.yml"] if needs_setup else []
    assert playbooks == [*setup, "train.yml"]


@pytest.mark.parametrize(("action", "stops"), [(Action.RESTART, ["kill"]), (Action.LAUNCH, [])])
def test_workers_get_the_environment_that_the_run_was_launched_with(action, stops):
    """The workers have the default environment, and the run was launched with another one."""
    process = ProcessStatus("pod-w0", RunState.RUNNING, has_environment=False)
    observed = Observation("READY", (process,), workers=1, address="pod")
    launched = run_record(jax_requirements="worker-torch")

    plays = plays_of(action, launched, observed, STATE_DIR, "gs://b", fence=1)

    calls = [(Path(play.playbooks[-1]).stem, play.variables) for play in plays]
    assert [name for name, _ in calls] == [*stops, "setup", "train"]
    for _, variables in calls[len(stops) :]:
        assert variables["jax_lock"] == f"{STATE_DIR}/locks/{LOCK}.lock"
        assert variables["jax_requirements"] == "worker-torch"


@pytest.mark.parametrize(
    ("action", "playbooks"),
    [
        (Action.RESTART, ["kill", "train"]),
        (Action.STOP, ["kill"]),
        (Action.REPLACE, ["delete", "create"]),
        (Action.RECREATE, ["create"]),
    ],
)
def test_each_playbook_gets_the_fence_and_none_records_the_run_as_stopped(action, playbooks):
    observed = Observation(
        "READY", (ProcessStatus("pod-w0", RunState.RUNNING),), workers=1, tpus=(POD,)
    )
    fence = {"run": "mine", "fence": 5, "fleet_state": "gs://b"}

    plays = plays_of(action, run_record(), observed, STATE_DIR, "gs://b", fence=5)

    assert [Path(play.playbooks[-1]).stem for play in plays] == playbooks
    for play in plays:
        assert play.variables == play.variables | fence
        assert play.variables.get("record", True) is ("playbooks/kill.yml" not in play.playbooks)


def test_a_lock_file_is_private_and_written_again_only_if_it_is_damaged(tmp_path):
    state = tmp_path / "new/state"
    lock = cached_lock_path(state, LOCK)
    cache_lock(state, LOCK_TEXT)
    first = lock.stat()

    cache_lock(state, LOCK_TEXT)
    assert lock.stat().st_ino == first.st_ino
    lock.write_bytes(b"jax==0.2")
    cache_lock(state, LOCK_TEXT)

    assert lock.read_bytes() == LOCK_TEXT + b"\n"
    assert [path.name for path in (state / "locks").iterdir()] == [f"{LOCK}.lock"]
    assert stat.S_IMODE((state / "locks").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("fields", "more"), [({}, {}), *(({"chip": n}, {"per_chip": True, "chip": n}) for n in (0, 3))]
)
def test_a_relaunch_passes_only_names_and_paths_and_the_current_tpu_to_its_playbooks(fields, more):
    variables = relaunch_variables(run_record(**fields), STATE_DIR, "gs://bucket/fleet", "pod_zone")

    assert variables == more | {
        "run": "mine",
        "tpu": "pod_zone",
        "relaunch": True,
        "code": "/home/me/.tpufleet/releases/" + RELEASE,
        "jax_lock": f"/home/me/.tpufleet/locks/{LOCK}.lock",
        "jax_requirements": "worker-tpu",
        "fleet_state": "gs://bucket/fleet",
        "wait": "started",
    }
