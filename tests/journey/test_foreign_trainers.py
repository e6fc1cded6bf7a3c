"""Levanter, from the package index, as a run that ends on SIGTERM and resumes after a preemption.

TPUFLEET_TEST_CLOUD names an existing cloud to use, which stays up. Levanter's packages (1.6 GB) are
in no lock file of this project, so a new version may break this test.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from harness.fleet import Fleet, beside
from harness.own_cloud import own_or_existing_cloud
from localcloud import client
from localcloud.place import PROJECT_ROOT
from tests.collections.package_index import publish

pytestmark = [
    pytest.mark.machines,
    pytest.mark.skipif(not os.environ.get("TPUFLEET_LONG"), reason="long: make test-long"),
]
WORKER = "solo-w0"
COMMAND = (
    "python -m levanter.main.train_lm --config_path levanter.yml --trainer.id {run} "
    "--trainer.log_dir {run_dir}/logs --data.cache_dir {run_dir}/cache "
    "--trainer.checkpointer.base_path {checkpoints} "
    "--trainer.distributed.coordinator_address {coordinator} "
    "--trainer.distributed.num_processes {num_processes} "
    "--trainer.distributed.process_id {process_id}"
)
TPU = {
    "name": "solo",
    "zone": "us-central2-b",
    "accelerator_type": "v4-8",
    "runtime_version": "tpu-ubuntu2204-base",
}
SAVED = re.compile(r"Saved checkpoint to \S+ for step (\d+)")
RESUMED = re.compile(r"Resuming training from step (\d+)")
OWN = "tpufleetwheel"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """A directory with a wheel that no index has."""
    index = tmp_path_factory.mktemp("wheels")
    publish(index, OWN, "1.0")
    return index / OWN


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, wheels):
    folder = tmp_path_factory.mktemp("inventory")
    inventory = beside(folder, tpu_fleet=[TPU], jax_own_wheels=str(wheels))
    with own_or_existing_cloud("foreign") as place:
        yield Fleet(place, inventory)


@pytest.fixture(scope="module")
def requirements(tmp_path_factory) -> Path:
    """The requirements of docs/own_trainer.md, for workers without chips."""
    file = tmp_path_factory.mktemp("requirements") / "mine.in"
    file.write_text(f"marin-levanter\n{OWN}\n")
    return file


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("code") / "levanter"
    folder.mkdir()
    shutil.copy(PROJECT_ROOT / "examples/levanter.yml", folder)
    (folder / "tokens.jsonl").write_text(json.dumps({"input_ids": list(range(32))}) + "\n")
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    model = {"type": "WordLevel", "vocab": {str(n): n for n in range(64)}, "unk_token": "0"}
    files = {
        "tokenizer.json": {"version": "1.0", "added_tokens": [], "model": model},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "config.json": {"model_type": "llama"},
    }
    for name, content in files.items():
        (tokenizer / name).write_text(json.dumps(content))
    return folder


def wait_for(fleet: Fleet, pattern: re.Pattern[str]) -> int:
    """Wait for a log line with a step; return the last step of such lines."""
    fleet.wait_for_log("lev", pattern.pattern)
    return int(pattern.findall(fleet.log("lev"))[-1])


def environment(fleet: Fleet) -> str:
    """Return the environment of the run's trainer on the worker."""
    text = fleet.read(0, "/etc/tpufleet/runs/lev/environment")
    return re.search(r'VIRTUAL_ENV="(.*)"', text)[1]


def launch(requirements: Path, code: Path) -> tuple[str, ...]:
    words = ("-e", "run=lev", "-e", f"code={code}", "-e", f"requirements={requirements}")
    prepared = "MARIN_PREFIX=/mnt/shared/marin"  # the default is Levanter's own bucket
    return ("train.yml", *words, "-e", f"env={prepared}", "-e", f"command={shlex.quote(COMMAND)}")


def test_levanter_trains_and_sigterm_ends_it(fleet, requirements, code):
    fleet.must_play("playbooks/create.yml")
    fleet.must_play("setup.yml", "-e", f"requirements={requirements}")
    fleet.must_play(*launch(requirements, code))
    wait_for(fleet, SAVED)
    fleet.on(WORKER, f"{environment(fleet)}/bin/python", "-c", f"import {OWN}")

    fleet.must_play("playbooks/kill.yml", "-e", "run=lev")

    ended = json.loads(fleet.read(0, "/var/lib/tpufleet/runs/lev/exit.json"))
    assert (ended["code"], ended["status"]) == ("killed", "TERM")
    fleet.on(WORKER, "sh", "-c", "! pgrep -u tpufleet -f levanter")


def test_a_preempted_run_resumes_with_the_packages_it_was_launched_with(fleet, requirements, code):
    fleet.must_play(*launch(requirements, code))
    wait_for(fleet, RESUMED)
    saved, before = wait_for(fleet, SAVED), environment(fleet)
    client.ask(fleet.place, "POST", "/_localcloud/nodes/solo:preempt")

    for _ in range(4):
        fleet.must_play("playbooks/watch.yml")
        if fleet.log("lev"):
            break

    assert wait_for(fleet, RESUMED) >= saved
    assert environment(fleet) == before
    lock = requirements.with_suffix(".lock")
    digest = hashlib.sha256(lock.read_bytes().strip()).hexdigest()
    record = json.loads((fleet.place.directory / "fleet/runs/lev.json").read_text())
    assert record["requirements"] == digest
    assert "crash" not in json.dumps(record["history"])
