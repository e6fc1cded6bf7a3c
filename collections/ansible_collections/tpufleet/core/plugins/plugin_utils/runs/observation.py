"""What a pass of the watch observes of one run: its TPUs and its processes."""

from __future__ import annotations

from dataclasses import dataclass

from .process_status import ProcessStatus

READY = "READY"
GONE = "gone"
"""The state of a TPU that the API does not list."""
FOREIGN = "foreign"
"""The state of a TPU whose name another TPU has now, which this fleet did not create."""
CHANGING = "changing"
"""The state of a TPU whose workers are listed with different states."""
DEAD = frozenset({"PREEMPTED", "TERMINATED", GONE})


@dataclass(frozen=True)
class ObservedTpu:
    """One TPU in one listing of the cloud. ``is_ours``: it has this fleet's ownership label."""

    name: str
    zone: str
    id: str
    state: str
    is_ours: bool
    workers: int = 1
    health: str = ""


@dataclass(frozen=True)
class Observation:
    """A run as a pass observes it.

    Args:
        tpu_state: the state of its TPU: the API's, GONE or FOREIGN.
        processes: one for each worker in the inventory.
        workers: how many workers its TPU has.
        health: the API's health of its TPU.
        is_confirmed: whether two listings, the last one of the API itself, had the same state.
        any_worker_answers: whether any worker at all answered this controller.
        is_identified: whether the record names the TPUs by id.
        is_deletable: whether all TPUs that were found have an id and this fleet's label.
        can_be_created: whether create.yml can create the TPU again.
        tpus: the TPUs as they are now, recreated ones included.
        address: what ``-e tpu=`` must be for them.
    """

    tpu_state: str
    processes: tuple[ProcessStatus, ...] = ()
    workers: int = 1
    health: str = ""
    is_confirmed: bool = False
    any_worker_answers: bool = True
    is_identified: bool = True
    is_deletable: bool = True
    can_be_created: bool = True
    tpus: tuple[ObservedTpu, ...] = ()
    address: str = ""
