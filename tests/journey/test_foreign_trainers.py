"""Trainers from the package index: each is set up, killed, resumed, preempted and fetched.

The packages (Levanter 1.6 GB, PyTorch 7 GB) are in no lock file of this project, so a new version
may break a test. The tests of a trainer run in the order of this file.
"""

import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.fleet import Fleet, fleet_entry, unpack, write_inventory
from harness.own_cloud import own_or_existing_cloud
from localcloud import client
from localcloud.local_cloud import PROJECT_ROOT
from tests.collections.package_index import publish

pytestmark = [pytest.mark.machines, pytest.mark.long]
OWN = "tpufleetwheel"
SETUP_SECONDS = 1800
"""Limit for a playbook that installs the environment."""


def write_levanter(folder: Path) -> None:
    """Write Levanter's config, tokens, and a tokenizer that it loads but does not use."""
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


def write_ddp(folder: Path) -> None:
    """Write the example for PyTorch DDP."""
    shutil.copy(PROJECT_ROOT / "examples/ddp.py", folder)


@dataclass(frozen=True)
class Trainer:
    """A trainer: its package, code and command, and what to expect of it.

    ``safe`` and ``resumed`` are regular expressions for its log, whose group is a step: in ``safe``
    a step that is saved, in ``resumed`` the step from which an attempt resumes. ``status`` is the
    exit code or signal after a kill. ``checkpoint`` is a glob pattern of its checkpoints.
    """

    name: str
    package: str
    write: Callable[[Path], None]
    command: str
    safe: str
    resumed: str
    status: str
    checkpoint: str
    workers: int

    @property
    def hosts(self) -> list[str]:
        """The inventory names of the workers."""
        return [f"own-w{number}" for number in range(self.workers)]


LEVANTER = Trainer(
    "levanter",
    "marin-levanter",
    write_levanter,
    "python -m levanter.main.train_lm --config_path levanter.yml --trainer.id {run} "
    "--trainer.log_dir {run_dir}/logs --data.cache_dir {run_dir}/cache "
    "--trainer.checkpointer.base_path {checkpoints} "
    "--trainer.distributed.coordinator_address {coordinator} "
    "--trainer.distributed.num_processes {num_processes} "
    "--trainer.distributed.process_id {process_id}",
    safe=r"Saved checkpoint to \S+ for step (\d+)",
    resumed=r"Resuming training from step (\d+)",
    status="TERM",
    checkpoint="*/step-*",
    workers=1,
)
DDP = Trainer(
    "ddp",
    "torch",
    write_ddp,
    "tpufleet_launch torch --processes 2 -- python ddp.py {checkpoints}",
    safe=r"\nstep (\d+)\n",  # the first attempt saves its last step when it is killed
    resumed=r"resumed from step (\d+)\n",
    status="75",
    checkpoint="*.pt",
    workers=2,
)


@pytest.fixture(scope="module", params=[LEVANTER, DDP], ids=lambda trainer: trainer.name)
def trainer(request) -> Trainer:
    return request.param


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, trainer):
    wheels = tmp_path_factory.mktemp("wheels")
    publish(wheels, OWN, "1.0")  # publish a package that is in no other index
    folder = tmp_path_factory.mktemp("inventory")
    tpu = fleet_entry("own", trainer.workers)
    inventory = write_inventory(folder, tpu_fleet=[tpu], jax_own_wheels=str(wheels / OWN))
    with own_or_existing_cloud("foreign") as cloud:
        fleet = Fleet(cloud, inventory)
        fleet.must_play("playbooks/create.yml")
        yield fleet


@pytest.fixture(scope="module")
def requirements(tmp_path_factory, trainer: Trainer) -> Path:
    file = tmp_path_factory.mktemp("requirements") / "mine.in"
    file.write_text(f"{trainer.package}\n{OWN}\n")
    return file


@pytest.fixture(scope="module")
def launch(tmp_path_factory, trainer: Trainer, requirements: Path) -> tuple[str, ...]:
    """The arguments of ansible-playbook that launch the trainer."""
    code = tmp_path_factory.mktemp("code") / trainer.name
    code.mkdir()
    trainer.write(code)
    options = (
        "-e",
        f"run={trainer.name}",
        "-e",
        f"code={code}",
        "-e",
        f"requirements={requirements}",
    )
    # By default, Levanter writes to a bucket of its authors.
    env = "MARIN_PREFIX=/mnt/shared/marin"
    command = f"command={shlex.quote(trainer.command)}"
    return ("train.yml", *options, "-e", f"env={env}", "-e", command)


def wait_for(fleet: Fleet, trainer: Trainer, pattern: str) -> int:
    """Wait until the newest attempt's log matches the pattern; return the last matching step."""
    fleet.wait_for_log(trainer.name, pattern)
    return int(re.findall(pattern, fleet.log(trainer.name))[-1])


def environment(fleet: Fleet, trainer: Trainer) -> str:
    """Return the directory of the Python environment in which worker 0 runs the trainer."""
    text = fleet.read(0, f"/etc/tpufleet/runs/{trainer.name}/environment")
    return re.search(r'VIRTUAL_ENV="(.*)"', text)[1]


def kill(fleet: Fleet, trainer: Trainer) -> None:
    """Kill the run; check its exit status on each worker, and that no process is left."""
    fleet.must_play("playbooks/kill.yml", "-e", f"run={trainer.name}")
    file = f"/var/lib/tpufleet/runs/{trainer.name}/exit.json"
    statuses = {json.loads(fleet.read(index, file))["status"] for index in range(trainer.workers)}
    assert statuses == {trainer.status}
    for worker in trainer.hosts:
        fleet.on(worker, "sh", "-c", f"! pgrep -u tpufleet -f {trainer.name}")


def test_a_trainer_trains_and_is_killed(fleet, trainer, requirements, launch):
    played = fleet.play("setup.yml", "-e", f"requirements={requirements}", limit_s=SETUP_SECONDS)
    assert played.code == 0, played.output[-4000:]
    fleet.must_play(*launch)
    wait_for(fleet, trainer, trainer.safe)
    for worker in trainer.hosts:
        fleet.on(worker, f"{environment(fleet, trainer)}/bin/python", "-c", f"import {OWN}")

    kill(fleet, trainer)


def test_a_preempted_run_resumes_with_the_packages_it_was_launched_with(
    fleet, trainer, requirements, launch
):
    safe = wait_for(fleet, trainer, trainer.safe)
    fleet.must_play(*launch)
    assert wait_for(fleet, trainer, trainer.resumed) >= safe
    before = environment(fleet, trainer)
    client.request(fleet.cloud, "POST", "/_localcloud/nodes/own:preempt")

    for _ in range(4):
        played = fleet.play("playbooks/watch.yml", limit_s=SETUP_SECONDS)
        assert played.code == 0, played.output[-4000:]
        if fleet.log(trainer.name):
            break

    assert wait_for(fleet, trainer, trainer.resumed) >= safe
    assert environment(fleet, trainer) == before
    lock = requirements.with_suffix(".lock")
    digest = hashlib.sha256(lock.read_bytes().strip()).hexdigest()
    record = json.loads((fleet.cloud.directory / f"fleet/runs/{trainer.name}.json").read_text())
    assert record["requirements"] == digest
    assert "crash" not in json.dumps(record["history"])


def test_the_newest_checkpoint_is_fetched_after_a_kill(fleet, trainer, tmp_path):
    kill(fleet, trainer)

    options = ("-e", f"run={trainer.name}", "-e", "checkpoints=newest", "-e", f"to={tmp_path}")
    fleet.must_play(
        "playbooks/fetch.yml", *options, "-e", f"checkpoint_pattern={trainer.checkpoint}"
    )

    fetched = unpack(tmp_path, "own-w0").rglob(f"checkpoints/{trainer.checkpoint}")
    assert len(list(fetched)) == 1
