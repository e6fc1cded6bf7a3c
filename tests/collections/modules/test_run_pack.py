"""What fetch brings of a run, and what it never brings."""

import io
import tarfile

import pytest
from ansible_collections.tpufleet.core.plugins.filter.runs import workers_of, workers_pattern
from ansible_collections.tpufleet.core.plugins.module_utils.run import Places, RunError
from ansible_collections.tpufleet.core.plugins.modules.run_pack import pack

ASKED = {"run": "mine", "bundle": False, "checkpoints": "none"}


@pytest.fixture
def places(tmp_path):
    found = Places(tmp_path / "opt", tmp_path / "state", tmp_path / "etc")
    found.run_dir("mine").mkdir(parents=True)
    found.unit_dir("mine").mkdir(parents=True)
    (found.run_dir("mine") / "log").write_text("step 1\n")
    (found.run_dir("mine") / "metrics.jsonl").write_text("{}\n")
    (found.unit_dir("mine") / "environment").write_text('WANDB_API_KEY="hunter2"\n')
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "3").mkdir(parents=True)
    (checkpoints / "3/arrays").write_text("numbers")
    launch = f'{{"checkpoints": "{checkpoints}"}}'
    (found.unit_dir("mine") / "launch.json").write_text(launch)
    return found


def packed(places, **more):
    with tarfile.open(fileobj=io.BytesIO(), mode="w:gz") as archive:
        return pack(ASKED | more, places, archive)


def test_what_the_run_has_written_is_brought(places):
    assert packed(places) == ["mine/log", "mine/metrics.jsonl", "mine/launch.json"]


def test_a_bundle_says_how_the_worker_is_and_holds_no_environment(places):
    names = packed(places, bundle=True)

    assert {"mine/unit.txt", "mine/disks.txt", "mine/devices.txt"} <= set(names)
    assert not [name for name in names if "environment" in name]


def test_checkpoints_are_brought_when_asked_for(places):
    assert "mine/checkpoints/3/arrays" in packed(places, checkpoints="all")


def test_a_link_that_a_trainer_put_there_is_not_followed(places):
    (places.run_dir("mine") / "exit.json").symlink_to("/etc/hostname")

    assert "mine/exit.json" not in packed(places)


def test_a_run_that_was_never_there_is_named(places):
    with pytest.raises(RunError, match="never a run other"):
        packed(places, run="other")


def test_the_workers_of_a_tpu_are_those_that_are_ready():
    groups = {"tpu": ["a-b-w0", "c-w0"], "tpu_a_b": ["a-b-w0", "a-b-w1"]}

    assert workers_of(groups, "a-b") == ["a-b-w0"]
    assert workers_of(groups) == ["a-b-w0", "c-w0"]
    assert (workers_pattern("a-b"), workers_pattern()) == ("tpu:&tpu_a_b", "tpu")


def test_the_newest_sound_checkpoint_alone_is_brought_when_asked_for(places, tmp_path):
    for step in ("3", "5"):
        (tmp_path / "checkpoints" / step).mkdir(exist_ok=True)
    (tmp_path / "checkpoints/3/manifest.json").write_text('{"files": {"arrays": [7, null]}}')

    names = packed(places, checkpoints="newest")

    assert "mine/checkpoints/3/manifest.json" in names
    assert not any("checkpoints/5" in name for name in names)


def test_checkpoints_without_a_sound_one_are_named(places):
    with pytest.raises(RunError, match="no sound checkpoint"):
        packed(places, checkpoints="newest")
