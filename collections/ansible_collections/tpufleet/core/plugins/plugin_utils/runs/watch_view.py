"""What a pass of the watch sees of a run: the TPUs that it was launched on, and their workers.

A TPU is found by zone and id. Its name alone may be another person's TPU, in this zone or another.
Pure; controller only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.tpu_nodes import Node
from ...module_utils.worker.run import chip_of, overlap
from .process import parse_process
from .status import process_text
from .watch_decision import DEAD, FOREIGN, GONE, READY, Part, Seen

if TYPE_CHECKING:
    from ..fleet.ownership import NodeIdentity
    from .record import RunRecord

MULTISLICE = "multislice_"
"""How a record names TPUs that one queued resource made together: as the inventory's group does."""
CHANGING = "changing"
"""The state of a TPU whose workers are listed with different states."""
IsOurs = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True)
class SeenTpu:
    """One TPU in one listing of the cloud. ``is_ours``: it has this fleet's ownership label."""

    name: str
    zone: str
    id: str
    state: str
    is_ours: bool
    workers: int = 1
    health: str = ""


def tpus_of_inventory(
    hosts: Mapping[str, Mapping[str, Any]], is_ours: IsOurs
) -> tuple[SeenTpu, ...]:
    """Return the TPUs of the inventory's hosts; ``hosts`` are the hosts' variables."""
    found: dict[tuple[str, str, str], SeenTpu] = {}
    for host in hosts.values():
        key = (str(host.get("tpu_zone")), str(host.get("tpu_name")), str(host.get("tpu_id")))
        state = str(host.get("tpu_state", READY))
        before = found.get(key)
        found[key] = SeenTpu(
            zone=key[0],
            name=key[1],
            id=key[2],
            state=state if before is None or before.state == state else CHANGING,
            is_ours=is_ours(host.get("tpu_labels") or {}),
            workers=int(host.get("tpu_worker_count") or 1),
            health=str(host.get("tpu_health") or ""),
        )
    return tuple(found.values())


def tpus_of_nodes(nodes: Iterable[Node], is_ours: IsOurs) -> tuple[SeenTpu, ...]:
    """Return the TPUs of a listing of the API."""
    return tuple(
        SeenTpu(
            name=node.name,
            zone=node.zone,
            id=node.id,
            state=node.state,
            is_ours=is_ours(node.labels),
            workers=len(node.endpoints) or 1,
            health=node.health,
        )
        for node in nodes
    )


def find_tpu(node: NodeIdentity, listed: Iterable[SeenTpu]) -> tuple[str, SeenTpu | None]:
    """Find the TPU of a launch in a listing. Returns its state, and the TPU unless it is GONE.

    A TPU with another id is the same one recreated if it has the same name and this fleet's label,
    and, in another zone, if there is just one such TPU. FOREIGN: somebody else's TPU has its name.
    """
    namesakes = [tpu for tpu in listed if tpu.name == node.name]
    here = [tpu for tpu in namesakes if tpu.zone == node.zone]
    same = next((tpu for tpu in here if tpu.id == node.id), None)
    if same:
        return same.state, same
    if here:
        return (here[0].state, here[0]) if here[0].is_ours else (FOREIGN, here[0])
    elsewhere = [tpu for tpu in namesakes if tpu.is_ours]
    return (elsewhere[0].state, elsewhere[0]) if len(elsewhere) == 1 else (GONE, None)


def address_of(tpu: SeenTpu, inventory: Iterable[SeenTpu]) -> str:
    """Return what ``-e tpu=`` must be for this TPU: its name, or ``NAME_ZONE`` if another zone of
    the inventory has one of that name (plugin_utils/fleet/tpu_hosts.py makes the groups)."""
    several = any(other.name == tpu.name and other.zone != tpu.zone for other in inventory)
    return f"{tpu.name}_{tpu.zone}" if several else tpu.name


def view(
    record: RunRecord,
    hosts: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    listings: Sequence[Sequence[SeenTpu]],
) -> Seen:
    """Return what is seen of one run.

    Args:
        record: the run.
        hosts: the inventory's variables of each host.
        answers: run_info's answer of each host.
        listings: the TPUs in the inventory, then in each later answer of the API. The last one
            counts, and is confirmed if the one before has the same state.
    """
    nodes = record.launch.nodes
    states = [_worst([find_tpu(node, listed)[0] for node in nodes]) for listed in listings]
    found = [find_tpu(node, listings[-1])[1] for node in nodes]
    tpus = tuple(tpu for tpu in found if tpu)
    is_multislice = record.launch.tpu.startswith(MULTISLICE)
    seen = Seen(
        states[-1],
        asked_twice=states[-1] in states[-2:-1],
        others_answer=any("runs" in answer for answer in answers.values()),
        is_identified=bool(nodes),
        is_deletable=bool(tpus) and all(tpu.is_ours and tpu.id for tpu in tpus),
        can_be_created=not is_multislice,
        tpus=tpus,
        address=record.launch.tpu
        if is_multislice or not tpus
        else address_of(tpus[0], listings[0]),
    )
    if seen.node != READY:
        return seen
    places = {(tpu.zone, tpu.id) for tpu in tpus}
    mine = sorted(
        host
        for host, facts in hosts.items()
        if (facts.get("tpu_zone"), facts.get("tpu_id")) in places
    )
    return seen.with_workers(
        tuple(part(host, record.run, answers.get(host) or {}, record.launch.chip) for host in mine),
        workers=sum(tpu.workers for tpu in tpus),
        health=next((tpu.health for tpu in tpus if tpu.health), ""),
    )


def _worst(states: Sequence[str]) -> str:
    """Return the state that decides for TPUs that are one run's."""
    order = (lambda state: state == FOREIGN, lambda state: state in DEAD, lambda s: s != READY)
    for is_bad in order:
        bad = next((state for state in states if is_bad(state)), None)
        if bad is not None:
            return bad
    return READY if states else GONE


def part(host: str, run: str, answer: Mapping[str, Any], chip: int = -1) -> Part:
    """Return a run's process on one worker. Runs on other chips than its own do not count."""
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
    found = parse_process(host, seen)
    return Part(
        host,
        found.is_active,
        known=found.has_environment,
        step=found.step or 0,
        has_heartbeat=found.has_heartbeat,
        heartbeat_age=found.heartbeat_age,
        code=found.signal or ("" if found.exit_code is None else str(found.exit_code)),
        ended_at=found.ended_at,
        blames=found.peer,
        words=": ".join(filter(None, (process_text(found), found.error))),
        output_age=found.output_age,
        attempt=found.attempt,
        other=other,
    )
