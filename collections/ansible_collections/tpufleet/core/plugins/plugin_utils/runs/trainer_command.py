"""Commands of tpufleet's trainer other than training: sample, eval, export, bench, compile.

``compile`` runs on the controller, before a launch. The other commands use the release,
environment, config and checkpoints of a run's last launch. They start one process on every worker
of the TPU, and the processes connect to each other as in a run. Only ``export``, and commands that
use CPUs or a single chip, start a single process.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from ...module_utils.worker.contract import ATTEMPT_PORTS, OUTPUTS
from ...module_utils.worker.launch_spec import LaunchSpec
from ...module_utils.worker.run import TRAINER, RunError, WorkerPaths, runs_trainer
from .observe import MULTISLICE
from .run_plan import Placement, Worker, place_processes

OPTIONS = {
    "sample": ("step",),
    "eval": ("step",),
    "export": ("step", "names", "to"),
    "bench": ("steps",),
}
"""The options of each command, which the trainer accepts as ``--OPTION VALUE``."""
COMPILED_FOR = ("v4", "v5e", "v5p", "v6e")
"""Generations of TPUs for which the trainer can compile a step."""
EXPORT = "export"
_ATTEMPT_OFFSET = 100


def check_trainer(launch: LaunchSpec, command: str) -> None:
    """Raise RunError unless the run was launched with a config of tpufleet's trainer.

    A run with a container image is refused, too, because these commands need the environment of the
    lock file. ``launch`` is the run's last launch, ``command`` the command's name, for the error.
    """
    if runs_trainer(launch.command) and launch.config is not None and not launch.image:
        return
    raise RunError(
        f"run {launch.run}: {command}.yml needs a run of this project's trainer, launched with a "
        f"config and without an image (its command: {shlex.join(launch.command):.100}). For your "
        "own trainer, launch its program as another run: "
        "ansible-playbook train.yml -e run=NAME -e command='\"PROGRAM ARGUMENT …\"'"
    )


def placements(
    launch: LaunchSpec, command: str, tpu: str, workers: Sequence[Worker], env: Mapping[str, str]
) -> dict[str, Placement]:
    """Return the placement of the command's processes, by host.

    There is one process on each worker, because libtpu waits for all workers. A command that uses
    one chip or only the CPU has one process, on the first worker. Raises RunError if a worker that
    the command needs is not READY.

    Args:
        launch: the run's last launch.
        command: the name of the command, such as ``eval``.
        tpu: the name of the TPU.
        workers: its READY workers.
        env: environment variables that override those of the launch.
    """
    if not workers:
        retry = f"ansible-playbook playbooks/{command}.yml -e run={launch.run} -e tpu=NAME"
        needs = "" if command == "bench" else f" that can read {launch.checkpoints}"
        create = f"create this one: ansible-playbook playbooks/create.yml -e tpu={tpu}"
        if tpu.startswith(MULTISLICE):
            create = "create its queued resource again (docs/fleets.md)"
        raise RunError(
            f"run {launch.run}: no worker of the TPU {tpu} is READY. Use another TPU{needs}: "
            f"{retry}, or {create}"
        )
    on_cpu = command == EXPORT or {**launch.env, **env}.get("JAX_PLATFORMS") == "cpu"
    if not on_cpu and launch.chip < 0:
        return place_processes(workers, launch.run)
    first = min(workers, key=lambda worker: (worker.slice_id, worker.index))
    return {first.host: Placement(launch.run, 0, "127.0.0.1", first.tpu)}


def command_launch(
    launch: LaunchSpec,
    command: str,
    options: Mapping[str, object],
    overrides: Sequence[str],
    env: Mapping[str, str],
    placed: Mapping[str, Any],
    attempt: int = 0,
) -> LaunchSpec:
    """Return the launch that runs a command of the trainer.

    Raises RunError for an option that the command does not have.

    ``export`` runs on the CPU, because the host has more memory than the devices.

    The coordinator's port is derived from the attempt number. The number in the returned launch
    exceeds that of ``launch`` by at least _ATTEMPT_OFFSET, so that the command does not use the
    port of the run, which may be active if it trains on CPUs.

    Args:
        launch: the run's last launch.
        command: the name of the command, such as ``eval``.
        options: values of the command's options (OPTIONS); None for an option that is not set.
        overrides: settings key=value that replace those of the launch.
        env: environment variables that override those of the launch.
        placed: the LaunchSpec fields of the processes' placement (launch.placement_fields).
        attempt: a number by which simultaneous commands get different ports.
    """
    set_options = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(set(set_options) - set(OPTIONS[command])):
        raise RunError(
            f"{unknown[0]}: {command}.yml has no such option (it has: "
            f"{', '.join(OPTIONS[command])}). Omit it: "
            f"ansible-playbook playbooks/{command}.yml -e run={launch.run}"
        )
    arguments = [
        argument for name, value in set_options.items() for argument in (f"--{name}", str(value))
    ]
    number = launch.attempt + _ATTEMPT_OFFSET + attempt % (ATTEMPT_PORTS - 2 * _ATTEMPT_OFFSET)
    platform = {}
    if command == EXPORT:
        if "to" not in set_options:
            arguments += ["--to", str(export_directory(launch.run, number))]
        platform = {"JAX_PLATFORMS": "cpu"}
    recorded = launch.command[len(TRAINER) :]
    return replace(
        launch,
        command=(*TRAINER[:-2], command, TRAINER[-1], *recorded, *overrides, *arguments),
        env={**launch.env, **env, **platform},
        attempt=number,
        **placed,
    )


def compile_arguments(
    launch: LaunchSpec, config: Path, generation: str, accelerator_type: str, topology: str
) -> list[str]:
    """Return the arguments with which the trainer compiles the step of a launch for its TPU.

    The list is empty if the controller can't compile the step: if the launch uses another trainer,
    an image, a single chip or CPUs, or if the TPU's generation is not in COMPILED_FOR.
    """
    is_own = runs_trainer(launch.command) and not launch.image
    is_on_tpu = launch.jax_requirements == "worker-tpu" and generation in COMPILED_FOR
    if not is_own or not is_on_tpu or launch.chip >= 0:
        return []
    slice_ = f"{generation}:{topology}" if topology else accelerator_type
    slice_options = ["--topology", slice_, "--slices", str(launch.slices)]
    return ["compile", str(config), *launch.command[len(TRAINER) :], *slice_options]


def bucket_target(to: str) -> str | None:
    """Return the URL to which a worker writes an export; None for a directory of the controller.

    ``to`` is the option of export.yml. Raises RunError for a URL that is not gs://bucket/prefix.
    """
    if "://" not in to:
        return None
    if not OUTPUTS.fullmatch(to.rstrip("/")):
        raise RunError(
            f"to={to:.200}: expected a directory, or gs://BUCKET/PREFIX. Correct it: "
            "ansible-playbook playbooks/export.yml -e run=NAME -e to=gs://BUCKET/PREFIX"
        )
    return to.rstrip("/")


def export_directory(run: str, attempt: int) -> PurePosixPath:
    """Return the directory on the worker to which an export without ``-e to=`` is written.

    ``attempt`` is the attempt number of the export itself, not that of the run's last launch, so
    simultaneous exports use different directories.
    """
    return PurePosixPath(WorkerPaths().run_dir(run)) / f".export-{attempt}"
