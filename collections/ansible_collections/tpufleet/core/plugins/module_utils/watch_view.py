"""What a pass of the watch sees, read out of the inventory and the workers' answers, and the
commands of an action. Pure; controller only."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from .run import chip_of, overlap
from .run_plan import TRAINER
from .tpu_slices import run_places
from .watch_decision import DEAD, GONE, LAUNCH, READY, RECREATE, REPLACE, RESTART, STOP, Part, Seen

CREATE, SETUP = "playbooks/create.yml", "setup.yml"
DELETE = "playbooks/delete.yml"
TOGETHER = "multislice_"
"""How a record names what one queued resource made together: as the inventory's group."""
BAD = ("FAILED", "UNREACHABLE")
"""How the terminal view begins what it says of a worker's failure."""
PUSH, TRAIN, KILL = "playbooks/push.yml", "train.yml", "playbooks/kill.yml"


def view(
    run: str,
    record: Mapping[str, Any],
    hosts: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    listed: Sequence[Mapping[str, str]] = (),
) -> Seen:
    """See one run: ``hosts`` are the inventory's variables, ``answers`` what run_info said.

    ``listed`` holds the states that the API gave, by TPU, each time it was asked behind the
    inventory. Its last word counts, and is confirmed where the one before was the same.
    """
    tpu = str(record.get("tpu", ""))
    together = tpu.startswith(TOGETHER)
    mine = {host: found for host, found in hosts.items() if tpu in run_places(found)}
    slices = {str(found.get("tpu_name")): found for found in mine.values()}
    count = max([1, *(int(found.get("tpu_slice_count") or 1) for found in slices.values())])
    names = list(slices) or [tpu]
    said = [state_of(names, count, told) for told in (inventory_states(mine), *listed)]
    node, asked_twice = said[-1], said[-1] in said[-2:-1]
    if node != READY:
        return Seen(node, asked_twice=asked_twice, ours=not together)
    chip = chip_of(record)
    parts = tuple(part(host, run, answers.get(host) or {}, chip) for host in sorted(mine))
    return Seen(
        node,
        parts,
        workers=sum(int(found.get("tpu_worker_count", 1)) for found in slices.values()),
        health=next((str(found.get("tpu_health") or "") for found in mine.values()), ""),
        asked_twice=asked_twice,
        others_answer=any("runs" in answer for answer in answers.values()),
        ours=not together,
    )


def inventory_states(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Give the state of each TPU of these hosts; where they differ, it is just changing."""
    found: dict[str, set[str]] = {}
    for host in hosts.values():
        found.setdefault(str(host.get("tpu_name")), set()).add(str(host.get("tpu_state", READY)))
    return {name: min(told) if len(told) == 1 else "changing" for name, told in found.items()}


def state_of(names: Sequence[str], count: int, told: Mapping[str, str]) -> str:
    """Give the state of a TPU, or the worst of ``count`` that were made together."""
    states = [told.get(name, GONE) for name in names]
    states += [GONE] * (len(states) < count)
    return next(
        (state for state in sorted(states, key=lambda each: each not in DEAD) if state != READY),
        READY,
    )


def part(host: str, run: str, answer: Mapping[str, Any], chip: int = -1) -> Part:
    """See a run on one worker; runs of other chips than its own are none of its business."""
    if "runs" not in answer:
        return Part(host, None)
    seen = next((each for each in answer["runs"] if each["run"] == run), None)
    others = [
        each["run"]
        for each in answer["runs"]
        if each["active"]
        and each["run"] != run
        and overlap(chip, chip_of(each.get("launched") or {}))
    ]
    other = str(others[0]) if others else ""
    if seen is None:
        return Part(host, False, known=False, other=other)
    beat, ended = seen.get("heartbeat") or {}, seen.get("exit") or {}
    step = beat.get("step")
    return Part(
        host,
        bool(seen["active"]),
        step=step if isinstance(step, int) else 0,
        has_heartbeat=bool(beat),
        heartbeat_age=seen.get("heartbeat_age"),
        code="" if seen["active"] else str(ended.get("status", "")),
        ended_at=float(ended.get("time") or 0),
        blames=str(ended.get("why", "")),
        words=": ".join(str(seen[key]) for key in ("state", "error") if seen.get(key)),
        output_age=seen.get("output_age"),
        attempt=int(seen.get("attempt") or 0),
        other=other,
    )


def commands(
    action: str, run: str, record: Mapping[str, Any], seen: Seen, variables: str
) -> list[list[str]]:
    """Give the playbooks of an action, in order, each as the words behind ansible-playbook.

    They are what a person would type. ``variables`` is the file with what the run is. To new
    workers the release is pushed before a launch asks all of them for it in vain.
    """
    tpu = f"tpu={record['tpu']}"
    what = ["-e", tpu, "-e", f"@{variables}"]
    train = [TRAIN, *what]
    kill = [KILL, "-e", tpu, "-e", f"run={run}", "-e", "record=false"]
    made_ready = [[SETUP, "-e", tpu], [PUSH, TRAIN, *what]]
    if action == RECREATE:
        return [[CREATE, "-e", tpu], *made_ready]
    if action == REPLACE:
        return [[DELETE, "-e", tpu, "-e", "yes=true"], [CREATE, "-e", tpu], *made_ready]
    if action == LAUNCH:
        return [train] if all(each.known for each in seen.parts) else made_ready
    if action == RESTART:
        return [kill, train]
    return [kill] if action == STOP else []


def train_variables(
    run: str, record: Mapping[str, Any], code: Path, config: Path | None, fleet_state: str
) -> dict[str, Any]:
    """Give what train.yml has to be told to launch the run again as it was."""
    words = [str(word) for word in record.get("command", [])]
    found: dict[str, Any] = {
        "run": run,
        "code": str(code),
        "fleet_state": fleet_state,
        "checkpoints": str(record.get("checkpoints", "")).rpartition("/")[0],
        "env": dict(record.get("env") or {}),
        "wait": "started",
        "only_if_wanted": True,
    }
    if chip_of(record) >= 0:
        found |= {"per_chip": True, "chip": chip_of(record)}
    if config:
        found["config"] = str(config)
    if tuple(words[: len(TRAINER)]) == TRAINER:
        found["set"] = words[len(TRAINER) :]
    else:
        found["command"] = shlex.join(words)
    return found


def last_words(output: str) -> str:
    """Give the line of a playbook's output that says why it failed.

    Of the terminal view's that is the one below the first failed worker and its task; another
    callback's is Ansible's error, or whatever came last.
    """
    lines = [line.strip() for line in output.splitlines()]
    for line, why in pairwise(lines):
        if line.split("  ")[0] in BAD:
            return f"{line.split()[1]}: {why}"
    errors = [line for line in lines if line.startswith("[ERROR]:")]
    telling: Sequence[str] = errors or [line for line in lines if line]
    return telling[-1].removeprefix("[ERROR]: ").removeprefix("Task failed: ") if telling else ""
