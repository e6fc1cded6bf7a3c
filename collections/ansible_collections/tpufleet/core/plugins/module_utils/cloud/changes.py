"""Options and outcomes of changes to TPUs and other cloud resources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .nodes import Node
    from .queued_resource import QueuedResource

Progress = Callable[[str], None]
"""A function that receives what a change is waiting for, such as the state of a resource."""


@dataclass(frozen=True)
class ChangeOptions:
    """Options for the creation, change and deletion of TPUs and queued resources.

    Args:
        check: change nothing; return what would change.
        recreate: delete and recreate a TPU that differs in an immutable field. Implies
            ``replace_dead``.
        replace_dead: delete and recreate a TPU that was preempted, or a queued resource that failed
            or whose TPUs were preempted.
        timeout: time limit in seconds for all steps of one change together. If a TPU is tried in
            several zones, each zone has the whole time limit.
        confirmed: keys of the TPUs and queued resources (Node.key, QueuedResource.key) whose
            deletion the user confirmed; None if no confirmation is needed. Preempted TPUs that are
            replaced need none.
        check_owner: called with an existing TPU or queued resource before it is changed or
            replaced; raises CloudError if it must be left alone.
        wait_for_capacity: seconds to keep trying while no zone has capacity; 0 tries each zone
            once.
        known_hosts_file: file for the workers' host keys; empty to store none.
        report: called during a change with the name and the current state of the TPU or the queued
            resource.
    """

    check: bool = False
    recreate: bool = False
    replace_dead: bool = False
    timeout: float = 1800.0
    confirmed: Collection[str] | None = None
    check_owner: Callable[[Node | QueuedResource], None] = lambda _resource: None
    wait_for_capacity: float = 0.0
    known_hosts_file: str = ""
    report: Callable[[str, str], None] = lambda _name, _state: None

    @property
    def replaces_lost(self) -> bool:
        """Whether to recreate preempted TPUs, and queued resources that failed or lost TPUs."""
        return self.replace_dead or self.recreate


@dataclass(frozen=True)
class Outcome:
    """A change that was made (in check mode: planned); ``before`` and ``after`` are its diff.

    ``node`` is the TPU after a change of a TPU; in check mode, it is the TPU before the change.
    ``replaced`` is the usable TPU that the change deleted and recreated. It is None if there was
    no TPU before, or only one that was preempted or being deleted. ``request`` is the queued
    resource after a change of a queued resource; None for a change of a TPU.
    """

    changed: bool
    msg: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    node: Node | None = None
    replaced: Node | None = None
    request: QueuedResource | None = None
    warnings: tuple[str, ...] = ()

    def result(self) -> dict[str, Any]:
        """Return the outcome as fields of a module's result: ``changed``, ``msg`` and ``diff``."""
        return {
            "changed": self.changed,
            "msg": self.msg,
            "diff": {"before": self.before, "after": self.after},
        }
