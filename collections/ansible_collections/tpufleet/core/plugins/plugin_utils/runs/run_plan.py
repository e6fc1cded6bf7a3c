"""Plan of a launch: the run and the process that each worker gets."""

from __future__ import annotations

import difflib
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ...module_utils.worker.contract import IMAGE
from ...module_utils.worker.run import COMMAND, TRAINER, RunError, check_name, split_command
from .run_sweep import Trial, assigned, fix_text, yaml_error_text

OVERRIDES = "{set}"
"""The placeholder for overrides in a trainer command."""
PLACEHOLDERS = (
    *("run", "run_dir", "attempt", "coordinator", "num_processes", "process_id", "config"),
    "checkpoints",
)
"""The other placeholders in a trainer command; each worker replaces them by its values."""
_IN_BRACES = re.compile(r"(?<![${])\{([a-z_]+)\}")
_MISTYPED_RATIO = 0.83
"""A word at least this similar to a placeholder (difflib's ratio) counts as a mistyped one.

A placeholder of 6 or more characters with one wrong, missing, additional or swapped letter reaches
this similarity. Words of log formats and file names, such as ``{process}`` or ``{step}``, do not. A
word with more underscores than the placeholder, such as ``{checkpoint_id}``, never counts as
mistyped.
"""
SHARED_VARIABLES = (
    "jax_requirements",
    "jax_lock",
    "requirements",
    "worker_extras",
    "bucket",
    "checkpoints",
    "shared_dir",
    "compile_cache",
    "outputs",
    "image",
)
"""Variables that can differ between TPUs but need the same value within one launch."""


@dataclass(frozen=True)
class Worker:
    """A host of the inventory: a worker, or a single chip of a worker.

    Args:
        host: the host name.
        tpu: the name of its TPU.
        index: the worker's number in the TPU, from 0.
        count: the number of workers of the TPU.
        leader: the address of the TPU's worker 0.
        multislice: the queued resource that created the TPU as one of several slices.
        slice_id: the TPU's number among these slices, from 0.
        slice_count: the number of these slices.
        slice_leader: the address of worker 0 of slice 0.
        chip: the number of the chip if the host is a single chip, -1 for a whole worker.
        chip_of: the name of the worker that has this chip.
    """

    host: str
    tpu: str
    index: int
    count: int
    leader: str
    multislice: str = ""
    slice_id: int = 0
    slice_count: int = 1
    slice_leader: str = ""
    chip: int = -1
    chip_of: str = ""


def worker_of(host: str, variables: Mapping[str, Any]) -> Worker:
    """Return a worker from its inventory variables. Raises RunError."""
    needed = (
        "tpu_name",
        "tpu_zone",
        "tpu_id",
        "tpu_worker_id",
        "tpu_worker_count",
        "tpu_leader_ip",
    )
    if missing := [name for name in needed if name not in variables]:
        raise RunError(
            f"{host}: missing variables {', '.join(missing)}. "
            "Use the inventory plugin tpufleet.core.tpu"
        )
    return Worker(
        host=str(host),
        tpu=str(variables["tpu_name"]),
        index=int(variables["tpu_worker_id"]),
        count=int(variables["tpu_worker_count"]),
        leader=str(variables["tpu_leader_ip"]),
        multislice=str(variables.get("tpu_multislice") or ""),
        slice_id=int(variables.get("tpu_slice_id") or 0),
        slice_count=int(variables.get("tpu_slice_count") or 1),
        slice_leader=str(variables.get("tpu_slice_leader_ip") or ""),
        chip=int(variables.get("tpu_chip", -1)),
        chip_of=str(variables.get("tpu_chip_of") or ""),
    )


@dataclass(frozen=True)
class Placement:
    """The process of a run that is assigned to a worker.

    Args:
        run: the name of the run.
        process_id: the number of the process within the run, from 0.
        coordinator_host: the address of the worker with process 0.
        tpu: the TPU or multislice of the run, in the form that ``-e tpu=`` accepts.
        slices: the number of slices of the run.
        overrides: the overrides key=value of a sweep.
        env: environment variables from a sweep.
        chip: the number of the chip if the run uses a single one, -1 for all chips.
        worker: the name of the worker that has this chip; empty if the run uses all chips.
    """

    run: str
    process_id: int
    coordinator_host: str
    tpu: str = ""
    slices: int = 1
    overrides: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    chip: int = -1
    worker: str = ""


def check_shared_variables(hostvars: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise RunError unless all workers have the same values of SHARED_VARIABLES.

    ``hostvars`` maps each host to its inventory variables.
    """
    for name in SHARED_VARIABLES:
        first_hosts: dict[str, str] = {}
        for host, variables in hostvars.items():
            first_hosts.setdefault(str(variables.get(name, "")), host)
        if len(first_hosts) > 1:
            (value, host), (other_value, other_host), *_ = first_hosts.items()
            raise RunError(
                f"{name}: workers of one launch need the same value ({value or 'not set'} for "
                f"{host}, {other_value or 'not set'} for {other_host}). Launch a run on each TPU: "
                "ansible-playbook train.yml -e tpu=NAME"
            )


def place_processes(
    workers: Sequence[Worker], name: str, sweep: tuple[Path, Sequence[Trial]] | None = None
) -> dict[str, Placement]:
    """Return the placement of each host's process, by host.

    Each TPU and each multislice gets one run. If the inventory has a host for each chip, each chip
    gets one run. A run needs the whole slice, so a missing worker of a TPU raises RunError.

    Args:
        workers: the hosts of the launch.
        name: the name of the run. If there are several runs or a sweep, the name of the TPU or of
            the sweep's entry is appended.
        sweep: the path of the sweep file and its entries; None for no sweep.
    """
    if not workers:
        raise RunError(
            "no worker is READY. Create TPUs: ansible-playbook playbooks/create.yml, or see what "
            "exists: ansible-playbook playbooks/status.yml"
        )
    groups: dict[str, list[Worker]] = defaultdict(list)
    for worker in workers:
        group = f"multislice_{worker.multislice}" if worker.multislice else worker.tpu
        groups[f"{group}-c{worker.chip}" if worker.chip >= 0 else group].append(worker)
    trials = assigned(sweep[1], sorted(groups), sweep[0]) if sweep else {}
    placements: dict[str, Placement] = {}
    for group, members in sorted(groups.items()):
        trial = trials.get(group, Trial(0))
        suffix = trial.name or (
            group.removeprefix("multislice_") if members[0].multislice else group
        )
        run = check_name(name if len(groups) == 1 and not sweep else f"{name}-{suffix}")
        if sweep and any(placement.run == run for placement in placements.values()):
            raise RunError(
                f"{sweep[0]}: two entries have the run name {run}. Give each another name"
            )
        tpu = members[0].tpu if members[0].chip >= 0 else group
        placements |= _run_placements(run, tpu, members, trial)
    return placements


def _run_placements(
    run: str, tpu: str, members: Sequence[Worker], trial: Trial
) -> dict[str, Placement]:
    """Return the placements of one run's processes, by host.

    Process ids increase from slice to slice, and within a slice from worker to worker. ``tpu`` is
    the run's TPU or multislice, ``members`` are the hosts of ``tpu``, ``trial`` is the run's entry
    of the sweep. Raises RunError.
    """
    by_slice: dict[int, list[Worker]] = defaultdict(list)
    for member in members:
        by_slice[member.slice_id].append(member)
    count = members[0].slice_count
    if sorted(by_slice) != list(range(count)):
        missing = ", ".join(str(index) for index in range(count) if index not in by_slice)
        raise RunError(
            f"multislice {tpu.removeprefix('multislice_')}: a run needs all {count} slices "
            f"(missing: {missing}). See their status: ansible-playbook playbooks/status.yml"
        )
    leader = members[0].slice_leader if count > 1 else members[0].leader
    placements, first_id = {}, 0
    for _, slice_members in sorted(by_slice.items()):
        expected, indexes = slice_members[0].count, sorted(member.index for member in slice_members)
        if len(set(indexes)) < len(indexes):
            raise RunError(
                f"several of the selected TPUs have the name {slice_members[0].tpu}. Launch the "
                "run on one of them: ansible-playbook train.yml -e tpu=NAME_ZONE"
            )
        if indexes != list(range(expected)):
            raise RunError(
                f"TPU {slice_members[0].tpu}: a run needs all {expected} workers (selected: "
                f"{', '.join(str(index) for index in indexes)}). Omit --limit, or see their "
                "status: ansible-playbook playbooks/status.yml"
            )
        for member in slice_members:
            placements[member.host] = Placement(
                run=run,
                process_id=first_id + member.index,
                coordinator_host=leader,
                tpu=tpu,
                slices=count,
                overrides=trial.overrides,
                env=trial.env,
                chip=member.chip,
                worker=member.chip_of,
            )
        first_id += expected
    return placements


def find_config(config: str, directories: Sequence[Path], variable: str = "config") -> Path:
    """Return the path of a config in the first of ``directories`` that has it.

    ``variable`` is the Ansible variable that names the file, for errors. Raises RunError.
    """
    for directory in directories:
        path = directory / Path(config).expanduser()
        if path.is_file():
            return path
    searched = " nor in ".join(dict.fromkeys(str(directory) for directory in directories))
    raise RunError(
        f"there is no {variable} {config} in {searched}. Choose another: "
        f"ansible-playbook train.yml -e {variable}=FILE"
    )


def read_config(path: Path, strict: bool) -> str:
    """Return the text of a config. Raises RunError if it can't be read or is invalid.

    If the name ends in .yml or .yaml, the text must be YAML. With ``strict``, which is for
    tpufleet's own trainer, it must be a YAML mapping, whatever the name.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(
            f"the config {path} can't be read: {error}. {fix_text(path, 'config')}"
        ) from error
    fix = fix_text(path, "config")
    if strict or path.suffix in (".yml", ".yaml"):
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RunError(
                f"the config {path} is not YAML ({yaml_error_text(error)}). {fix}"
            ) from error
        if strict and not isinstance(value, dict):
            raise RunError(
                f"the config {path} has no settings (expected lines 'name: value'). {fix}"
            )
    return text


SET_EXAMPLE = "ansible-playbook train.yml -e set='\"key=value other=value\"'"


def command_of(command: str | None) -> tuple[str, ...]:
    """Split the variable ``command`` into words. The default is the command of tpufleet's trainer.

    Placeholders such as ``{set}`` are not replaced. Raises RunError for a mistyped placeholder.
    """
    arguments = split_command(command) if command else (*TRAINER, OVERRIDES)
    refuse_mistyped(arguments)
    return arguments


def refuse_mistyped(command: Sequence[str]) -> None:
    """Raise RunError if the command contains a mistyped placeholder: ``{checkpoint}``, for example.

    Other words in braces are allowed, because programs use them: JSON, awk, file name templates.
    A mistyped ``{set}`` is not detected here, because other words such as ``{step}`` are too
    similar to it. If there are overrides, with_overrides raises an error for the missing ``{set}``.
    """
    for word in _IN_BRACES.findall(" ".join(command)):
        matches = difflib.get_close_matches(word, PLACEHOLDERS, 1, _MISTYPED_RATIO)
        has_more_underscores = matches and word.count("_") > matches[0].count("_")
        if matches and not has_more_underscores and word not in PLACEHOLDERS:
            known = ", ".join(f"{{{name}}}" for name in (*PLACEHOLDERS, "set"))
            raise RunError(
                f"the command contains {{{word}}}, which is no placeholder. Did you mean "
                f"{{{matches[0]}}}? Placeholders: {known}. Fix the command: {COMMAND}. If the "
                f"program itself needs {{{word}}}, move the command into a script"
            )


def checked_image(image: str, command: str | None) -> str:
    """Return ``image``, which must be empty or a container image with a digest. Raises RunError.

    ``command`` is the command that the user set; an image needs one.
    """
    if image and not IMAGE.fullmatch(image):
        raise RunError(
            f"image={image:.200}: expected REGISTRY/NAME@sha256:DIGEST, because a tag can change. "
            "Find the digest: docker buildx imagetools inspect REGISTRY/NAME:TAG"
        )
    if image and not command:
        raise RunError(
            f"image={image}: no command is set. Set one: ansible-playbook train.yml -e run=NAME "
            "-e image=REGISTRY/NAME@sha256:DIGEST -e command='\"PROGRAM ARGUMENT …\"'"
        )
    return image


def parse_overrides(value: str | Sequence[Any] | None) -> tuple[str, ...]:
    """Parse the variable ``set``: a list of overrides key=value, or one string with them.

    Raises RunError.
    """
    overrides = value or []
    if isinstance(overrides, str):
        try:
            overrides = shlex.split(overrides)
        except ValueError as error:
            raise RunError(
                f"set={value!r} can't be split into words ({error}). Use: {SET_EXAMPLE}"
            ) from error
    for override in overrides:
        if "=" not in str(override):
            raise RunError(f"{override!r} in set= is not key=value. Use: {SET_EXAMPLE}")
    return tuple(str(override) for override in overrides)


def with_overrides(command: Sequence[str], overrides: Sequence[str]) -> tuple[str, ...]:
    """Return ``command`` with the overrides (each key=value) in place of ``{set}``.

    An argument that contains ``{set}`` is repeated for each override, so ``--{set}`` becomes
    ``--key=value``. Without overrides, the argument is dropped. Raises RunError if there are
    overrides but no ``{set}``: a trainer might ignore arguments that are just appended.
    """
    if overrides and not any(OVERRIDES in argument for argument in command):
        raise RunError(
            f"the command does not say where overrides belong (set: {shlex.join(overrides):.100}). "
            f"Add {OVERRIDES} to it, or --{OVERRIDES} for flags: ansible-playbook train.yml "
            "-e command='\"PROGRAM ARGUMENT {set}\"'"
        )
    arguments: list[str] = []
    for argument in command:
        replaced = [argument.replace(OVERRIDES, override) for override in overrides]
        arguments += replaced if OVERRIDES in argument else [argument]
    return tuple(arguments)


def run_name(run: str | None, config: Path | None, command: Sequence[str]) -> str:
    """Return ``run`` if it is set, else the name of the config's file without its suffix.

    Raises RunError if the name is invalid, or if there is neither a run nor a config.
    ``command`` is the trainer's command, for the error.
    """
    if run:
        return check_name(run)
    if config:
        return check_name(config.stem)
    raise RunError(
        f"a run without a config needs a name ({shlex.join(command)}). Name it: {COMMAND}"
    )
