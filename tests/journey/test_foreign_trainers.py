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
import subprocess
import time
from pathlib import Path

import pytest

from harness.fleet import Fleet, beside
from localcloud import client, cloud
from localcloud.place import PROJECT_ROOT, Place

pytestmark = [
    pytest.mark.machines,
    pytest.mark.skipif(not os.environ.get("TPUFLEET_LONG"), reason="long: make test-long"),
]
CLOUD = os.environ.get("TPUFLEET_TEST_CLOUD", "")
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
SOON = 600


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    place = Place.of(CLOUD or f"test-foreign-{os.getpid()}")
    inventory = beside(tmp_path_factory.mktemp("inventory"), tpu_fleet=[TPU])
    if not CLOUD:
        cloud.up(place, port=None, subnet=None, say=print)
    yield Fleet(place, inventory)
    if not CLOUD:
        cloud.down(place, say=print)


@pytest.fixture(scope="module")
def lock(tmp_path_factory) -> Path:
    """A lock file of Levanter with hashes, made as in docs/own_trainer.md."""
    folder = tmp_path_factory.mktemp("lock")
    (folder / "mine.in").write_text("marin-levanter\n")
    subprocess.run(
        [
            *("uv", "pip", "compile", "--quiet", "--generate-hashes", "--prerelease", "allow"),
            *("--universal", "--python-version", "3.12", "--only-binary", ":all:"),
            *("mine.in", "-o", "mine.lock"),
        ],
        cwd=folder,
        check=True,
    )
    return folder / "mine.lock"


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("code") / "levanter"
    folder.mkdir()
    shutil.copy(PROJECT_ROOT / "bench/foreign/levanter.yml", folder)
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


def log(fleet: Fleet) -> str:
    """Return the log of the last attempt, or "" if the machine does not exist."""
    try:
        return fleet.read(0, "/var/lib/tpufleet/runs/lev/log").rpartition("--- ")[2]
    except (OSError, ValueError):
        return ""


def wait_for(fleet: Fleet, pattern: re.Pattern[str]) -> int:
    deadline = time.monotonic() + SOON
    while not (found := pattern.findall(log(fleet))):
        assert "Traceback" not in log(fleet), log(fleet)[-3000:]
        assert time.monotonic() < deadline, log(fleet)[-3000:]
        time.sleep(0.5)
    return int(found[-1])


def environment(fleet: Fleet) -> str:
    """Return the environment of the run's trainer on the worker."""
    text = fleet.read(0, "/etc/tpufleet/runs/lev/environment")
    return re.search(r'VIRTUAL_ENV="(.*)"', text)[1]


def launch(lock: Path, code: Path) -> tuple[str, ...]:
    words = ("-e", "run=lev", "-e", f"code={code}", "-e", f"jax_lock={lock}")
    prepared = "MARIN_PREFIX=/mnt/shared/marin"  # the default is Levanter's own bucket
    return ("train.yml", *words, "-e", f"env={prepared}", "-e", f"command={shlex.quote(COMMAND)}")


def test_levanter_trains_and_sigterm_ends_it(fleet, lock, code):
    fleet.must_play("playbooks/create.yml")
    fleet.must_play("setup.yml", "-e", f"jax_lock={lock}")
    fleet.must_play(*launch(lock, code))
    wait_for(fleet, SAVED)

    fleet.must_play("playbooks/kill.yml", "-e", "run=lev")

    ended = json.loads(fleet.read(0, "/var/lib/tpufleet/runs/lev/exit.json"))
    assert (ended["code"], ended["status"]) == ("killed", "TERM")
    fleet.on(WORKER, "sh", "-c", "! pgrep -u tpufleet .")


def test_a_preempted_run_resumes_with_the_packages_it_was_launched_with(fleet, lock, code):
    fleet.must_play(*launch(lock, code))
    wait_for(fleet, RESUMED)
    saved, before = wait_for(fleet, SAVED), environment(fleet)
    client.ask(fleet.place, "POST", "/_localcloud/nodes/solo:preempt")

    for _ in range(4):
        fleet.must_play("playbooks/watch.yml")
        if log(fleet):
            break

    assert wait_for(fleet, RESUMED) >= saved
    assert environment(fleet) == before
    digest = hashlib.sha256(lock.read_bytes().strip()).hexdigest()
    record = json.loads((fleet.place.directory / "fleet/runs/lev.json").read_text())
    assert record["requirements"] == digest
    assert "crash" not in json.dumps(record["history"])
