"""Which processes a run has: from the workers addressed to each one's part. Controller only, and
pure."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .run import RunError, check_name, command_words

TRAINER = ("python", "-m", "train", "run", "{config}")
BASE_PORT = 8476
PORTS = 1000


@dataclass(frozen=True)
class Worker:
    """A worker as the inventory has it. ``count`` is how many its TPU has; ``leader`` an
    address."""

    host: str
    tpu: str
    index: int
    count: int
    leader: str


@dataclass(frozen=True)
class Part:
    """One worker's part of a run."""

    run: str
    process_id: int
    num_processes: int
    leader: str


def parts(workers: Sequence[Worker], name: str) -> dict[str, Part]:
    """Give each worker its part: one run a TPU, with the TPU's name behind the run's if there are
    several.

    Raises RunError if a TPU's workers aren't all there: a slice runs whole.
    """
    by_tpu: dict[str, list[Worker]] = defaultdict(list)
    for worker in workers:
        by_tpu[worker.tpu].append(worker)
    if not by_tpu:
        raise RunError(
            "there is no READY worker to run on: create.yml makes TPUs, status.yml shows them"
        )
    found = {}
    for tpu, members in sorted(by_tpu.items()):
        run = check_name(name if len(by_tpu) == 1 else f"{name}-{tpu}")
        wanted, there = members[0].count, sorted(member.index for member in members)
        if there != list(range(wanted)):
            raise RunError(
                f"TPU {tpu} has {wanted} workers and a run takes all of them; "
                f"addressed are {', '.join(str(index) for index in there)}: "
                "leave --limit out, or see playbooks/status.yml"
            )
        for member in members:
            found[member.host] = Part(run, member.index, wanted, member.leader)
    return found


def port(attempt: int) -> int:
    """Give an attempt's own coordinator port, so that what an earlier one left can't be in the
    way."""
    return BASE_PORT + attempt % PORTS


def find_config(config: str, places: Sequence[Path]) -> Path:
    """Find a config file: as given, else in each place in turn."""
    for place in places:
        path = place / Path(config).expanduser()
        if path.is_file():
            return path
    looked = " nor in ".join(dict.fromkeys(str(place) for place in places))
    raise RunError(f"there is no config {config} in {looked}: give its path with -e config=FILE")


def read_config(path: Path, strict: bool) -> str:
    """Read a config; the project's own trainer (``strict``) wants a YAML mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"the config {path} can't be read: {error}") from error
    if strict or path.suffix in (".yml", ".yaml"):
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RunError(f"the config {path} is no YAML: {where(error)}") from error
        if strict and not isinstance(value, dict):
            raise RunError(f"the config {path} holds no settings: lines 'name: value' are wanted")
    return text


def where(error: yaml.YAMLError) -> str:
    """Say on one line what YAML complains of, and in which line of the file."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"line {mark.line + 1}: {problem}" if mark and problem else " ".join(str(error).split())


def words(command: str | None, overrides: Any) -> list[str]:
    """Give the words to run: the command given or the project's trainer, with overrides behind
    it."""
    if isinstance(overrides, str):
        try:
            overrides = shlex.split(overrides)
        except ValueError as error:
            raise RunError(f"set={overrides!r} can't be split into words: {error}") from error
    extra = [str(word) for word in overrides or []]
    for word in extra:
        if "=" not in word:
            raise RunError(f"{word!r} in set= is no key=value")
    return [*(command_words(command) if command else TRAINER), *extra]


def run_name(run: str | None, config: Path | None, command: Sequence[str]) -> str:
    """Name a run: as asked, else by its config, else by what it runs."""
    if run:
        return check_name(run)
    if config:
        return check_name(config.stem)
    raise RunError(f"name the run of {shlex.join(command)}: -e run=NAME")
