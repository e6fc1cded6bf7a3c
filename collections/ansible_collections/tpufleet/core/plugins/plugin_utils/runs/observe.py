"""Observation of runs: find a run's TPUs, and its processes on their workers.

A TPU is identified by zone and id, because another person may have created a TPU of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.names import ALL_ZONES, includes_zone
from ...module_utils.worker.run import chip_of, overlap
from ...module_utils.worker.run_state import RunState
from ..fleet.ownership import is_ours
from .observation import (
    CHANGING,
    DEAD,
    FOREIGN,
    GONE,
    NOT_LISTED,
    READY,
    Observation,
    ObservedTpu,
    ProcessStatus,
    parse_process,
)

if TYPE_CHECKING:
    from ...module_utils.cloud.nodes import Node
    from ...module_utils.worker.node_identity import NodeIdentity
    from .record import RunRecord

MULTISLICE = "multislice_"
"""Prefix of a multislice's inventory group; run records have the group's name as ``tpu``."""
SNAPSHOT_VALID_S = 90.0
"""A run is stopped or a TPU deleted only if the observation is at most this old, in seconds."""
TPU_VARIABLES = (
    "tpu_name",
    "tpu_id",
    "tpu_state",
    "tpu_worker_count",
    "tpu_health",
    "tpu_zone",
    "tpu_labels",
)


def tpu_variables_of_hosts(variables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the inventory's variables about each host's TPU (TPU_VARIABLES), by host.

    ``variables`` are the variables of a task, with ``hostvars`` and ``groups``.
    """
    hostvars = variables["hostvars"]
    return {
        str(host): {name: hostvars[host][name] for name in TPU_VARIABLES if name in hostvars[host]}
        for host in variables["groups"]["all"]
        if host != "localhost" and "tpu_name" in hostvars[host]
    }


def tpus_of_inventory(
    hosts: Mapping[str, Mapping[str, Any]], fleet_name: str
) -> tuple[ObservedTpu, ...]:
    """Return the TPUs in the inventory.

    ``hosts`` maps each host to its variables. ``fleet_name`` is the name of this fleet.
    """
    tpus: dict[tuple[str, str, str], ObservedTpu] = {}
    for host in hosts.values():
        key = (str(host.get("tpu_zone")), str(host.get("tpu_name")), str(host.get("tpu_id")))
        state = str(host.get("tpu_state", READY))
        before = tpus.get(key)
        tpus[key] = ObservedTpu(
            zone=key[0],
            name=key[1],
            id=key[2],
            state=state if before is None or before.state == state else CHANGING,
            is_ours=is_ours(host.get("tpu_labels") or {}, fleet_name),
            workers=int(host.get("tpu_worker_count") or 1),
            health=str(host.get("tpu_health") or ""),
        )
    return tuple(tpus.values())


def tpus_of_nodes(nodes: Iterable[Node], fleet_name: str) -> tuple[ObservedTpu, ...]:
    """Convert the nodes that the API lists to ObservedTpu objects.

    ``is_ours`` is set for the TPUs of the fleet ``fleet_name``.
    """
    return tuple(
        ObservedTpu(
            name=node.name,
            zone=node.zone,
            id=node.id,
            state=node.state,
            is_ours=is_ours(node.labels, fleet_name),
            workers=len(node.endpoints) or 1,
            health=node.health,
            created=node.created,
        )
        for node in nodes
    )


def find_tpu(node: NodeIdentity, listed: Iterable[ObservedTpu]) -> tuple[str, ObservedTpu | None]:
    """Find the TPU of a launch in a list of TPUs. Return its state and the TPU, or GONE and None.

    ``node`` is the TPU in the run record. A recreated TPU has the same name and this fleet's label,
    but a different id, and may be in a different zone. The first case that applies decides:

    - ``node`` is listed: return it. Exception: if ``node`` is preempted or terminated (DEAD), and
      the other zones have exactly one recreated TPU in any other state, return the recreated TPU.
    - Another TPU in the same zone has the name of ``node``: return that TPU, with the state FOREIGN
      if it does not have this fleet's label.
    - The other zones have exactly one recreated TPU: return that TPU.
    """
    namesakes = [tpu for tpu in listed if tpu.name == node.name]
    same_zone = [tpu for tpu in namesakes if tpu.zone == node.zone]
    other_zones = [tpu for tpu in namesakes if tpu.zone != node.zone and tpu.is_ours]
    original = next((tpu for tpu in same_zone if tpu.id == node.id), None)
    if original:
        alive = [tpu for tpu in other_zones if tpu.state not in DEAD]
        recreated = alive[0] if original.state in DEAD and len(alive) == 1 else original
        return recreated.state, recreated
    if same_zone:
        return (
            (same_zone[0].state, same_zone[0]) if same_zone[0].is_ours else (FOREIGN, same_zone[0])
        )
    return (other_zones[0].state, other_zones[0]) if len(other_zones) == 1 else (GONE, None)


def address_of(tpu: ObservedTpu, inventory: Iterable[ObservedTpu]) -> str:
    """Return the value of ``-e tpu=`` that selects this TPU.

    This is its name, or ``NAME_ZONE`` if the inventory has a TPU of the same name in another zone
    (see the groups in plugin_utils/fleet/hosts.py).
    """
    several = any(other.name == tpu.name and other.zone != tpu.zone for other in inventory)
    return f"{tpu.name}_{tpu.zone}" if several else tpu.name


def reported_runs(answer: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Return the runs that a worker reported; None if its answer is missing or malformed.

    ``answer`` is the result of run_info.
    """
    runs = answer.get("runs")
    is_valid = isinstance(runs, list) and all(
        isinstance(run, Mapping)
        and isinstance(run.get("run"), str)
        and isinstance(run.get("active"), bool)
        and isinstance(run.get("launched") or {}, Mapping)
        for run in runs
    )
    return runs if is_valid else None


def find_process(host: str, run: str, answer: Mapping[str, Any], chip: int = -1) -> ProcessStatus:
    """Return a run's process on a worker from the result of run_info.

    The state is UNREACHABLE if ``answer`` has no valid list of runs, LOST if the list does not have
    this run. ``chip`` is the number of the only chip that the run uses, -1 for all chips.
    ``other_run`` of the result is another run that is active on the same chips.
    """
    runs = reported_runs(answer)
    if runs is None:
        return ProcessStatus(host, RunState.UNREACHABLE, run=run, has_environment=False)
    other_runs = [
        report["run"]
        for report in runs
        if report["active"]
        and report["run"] != run
        and overlap(chip, chip_of(report.get("launched") or {}))
    ]
    other_run = other_runs[0] if other_runs else ""
    for report in runs:
        if report["run"] == run:
            return replace(parse_process(host, report), other_run=other_run)
    return ProcessStatus(host, RunState.LOST, run=run, has_environment=False, other_run=other_run)


def _worst(states: Iterable[str]) -> str:
    """Return the worst of the states of a run's TPUs.

    From worst to best: FOREIGN; preempted, terminated or gone (DEAD); any other state; READY.
    """

    def goodness(state: str) -> tuple[bool, bool, bool]:
        return state != FOREIGN, state not in DEAD, state == READY

    return min(states, key=goodness)


@dataclass(frozen=True)
class Snapshot:
    """What one pass observed of all TPUs and workers.

    Args:
        hosts: the inventory's variables of each host.
        answers: the result of run_info on each host.
        listings: lists of TPUs: first the inventory's, then those of the API, oldest first.
        asked_at: when run_info was started, in unix seconds.
        zones: the zones that the listings cover; ``-`` means all zones.
        listed_at: when the API listed TPUs last, in unix seconds; 0 if there is only the inventory,
            which may come from a cache.
    """

    hosts: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Mapping[str, Any]]
    listings: tuple[tuple[ObservedTpu, ...], ...]
    asked_at: float
    zones: Sequence[str] = (ALL_ZONES,)
    listed_at: float = 0.0

    def of(self, record: RunRecord) -> Observation:
        """Return the observation of one run.

        The state of the run's TPU comes from the newest list in ``listings``. It is confirmed if
        the list before the newest one gives the same state.
        """
        launch, listings = record.launch, self.listings
        states = [
            _worst(self._state(node, listing) for node in launch.nodes) for listing in listings
        ]
        found_tpus = [find_tpu(node, listings[-1])[1] for node in launch.nodes]
        tpus = tuple(tpu for tpu in found_tpus if tpu)
        is_multislice = launch.tpu.startswith(MULTISLICE)
        tpu_ids = {(tpu.zone, tpu.id) for tpu in tpus} if states[-1] == READY else set()
        tpu_hosts = sorted(
            host
            for host, variables in self.hosts.items()
            if (variables.get("tpu_zone"), variables.get("tpu_id")) in tpu_ids
        )
        return Observation(
            states[-1],
            processes=tuple(
                find_process(host, record.run, self.answers.get(host) or {}, launch.chip)
                for host in tpu_hosts
            ),
            workers=sum(tpu.workers for tpu in tpus),
            health=_worst_health(tpu.health for tpu in tpus),
            is_confirmed=states[-1] in states[-2:-1],
            any_worker_answers=any(
                reported_runs(answer) is not None for answer in self.answers.values()
            ),
            can_be_created=not is_multislice,
            tpus=tpus,
            address=launch.tpu if is_multislice or not tpus else address_of(tpus[0], listings[0]),
        )

    def _state(self, node: NodeIdentity, listed: Iterable[ObservedTpu]) -> str:
        is_listed = includes_zone(self.zones, node.zone)
        return find_tpu(node, listed)[0] if is_listed else NOT_LISTED

    def with_listing(self, listed: Sequence[ObservedTpu], listed_at: float) -> Snapshot:
        """Return a copy with one more list: the TPUs that the API listed at ``listed_at``."""
        return replace(self, listings=(*self.listings, tuple(listed)), listed_at=listed_at)


def _worst_health(healths: Iterable[str]) -> str:
    """Return the worst health of a run's TPUs; empty if there are none.

    From worst to best: UNHEALTHY_MAINTENANCE, other values that begin with UNHEALTHY, other values.
    """

    def badness(health: str) -> tuple[bool, bool]:
        return health == "UNHEALTHY_MAINTENANCE", health.startswith("UNHEALTHY")

    return max(healths, key=badness, default="")
