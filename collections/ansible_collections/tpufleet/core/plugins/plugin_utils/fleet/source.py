"""The one interface by which the controller reaches a cloud: a source of TPUs.

A source lists its TPUs as JSON, which any cache plugin can store, and parses an entry into a Node;
everything else (hosts, groups, plan, watch) uses Nodes alone. Today there is one, the Cloud TPU API
(cloud_tpus.py). Another source is a class with these methods, chosen by ``open_source``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...module_utils.cloud.compute import ComputeApi
from ...module_utils.cloud.errors import CloudError
from ...module_utils.cloud.host_keys import KnownHost
from ...module_utils.cloud.http import Polling
from ...module_utils.cloud.names import ALL_ZONES
from ...module_utils.cloud.node_diff import NodeOutcome
from ...module_utils.cloud.node_spec import NodeSpec
from ...module_utils.cloud.nodes import Node
from ...module_utils.cloud.outcome import Outcome
from ...module_utils.cloud.queued_resource import QueuedResource
from ...module_utils.cloud.tpu_api import Listing
from .spec import FleetEntry

#: Receives the state that a TPU waits in.
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ChangeOptions:
    """How to create and delete TPUs.

    Args:
        check: change nothing; return what would change.
        recreate: delete and create again a TPU that differs in an immutable field.
        replace_dead: delete and create again a TPU that was preempted.
        timeout: for each TPU, in seconds.
        agreed: keys of what may be deleted, as a person agreed to; None: anything.
        check_owner: raises CloudError for an existing TPU or request that must be left as it is.
        wait_for_capacity: seconds to keep trying where no zone has capacity; 0: one try per zone.
        known_hosts_file: where the workers' host keys are stored; empty: nowhere.
    """

    check: bool = False
    recreate: bool = False
    replace_dead: bool = False
    timeout: float = 1800.0
    agreed: Collection[str] | None = None
    check_owner: Callable[[Node | QueuedResource], None] = lambda _found: None
    wait_for_capacity: float = 0.0
    known_hosts_file: str = ""


class Source(Protocol):
    """The TPUs of one cloud API. Safe for several threads. Methods raise CloudError only.

    A preemption shows in ``Node.is_lost``: a source reports the states PREEMPTED and TERMINATED
    only where its cloud says that it took the TPU back.
    """

    polling: Polling

    @property
    def compute(self) -> ComputeApi:
        """Compute Engine of the same project, for data disks."""

    def list(self, zones: Sequence[str], *, allow_partial: bool = False) -> Listing:
        """List the TPUs of the zones (``-``: all), without secrets. Raises PartialAnswer."""

    def parse(self, entry: object) -> Node:
        """Validate one entry of a listing, fresh or from a cache."""

    def describe(self, zone: str, name: str) -> Node | None:
        """Return one TPU; None if it does not exist."""

    def create(
        self,
        tpu: FleetEntry,
        spec: NodeSpec,
        present: Node | None,
        options: ChangeOptions,
        progress: Progress,
    ) -> NodeOutcome:
        """Create or change a TPU until it is READY; ``present`` is the one that was listed."""

    def delete(self, node: Node, options: ChangeOptions, progress: Progress) -> NodeOutcome:
        """Delete this very TPU, and the request that only it came from."""

    def list_queued(self, zones: Sequence[str]) -> Sequence[QueuedResource]:
        """List the requests for TPUs that wait in a queue. Raises PartialAnswer."""

    def delete_queued(
        self, request: QueuedResource, options: ChangeOptions, progress: Progress
    ) -> Outcome:
        """Delete this very request; it has no TPU."""

    def host_keys(self, node: Node, *, with_names: bool = False) -> Sequence[KnownHost]:
        """Return the ssh host keys that the workers have published, and their host names."""

    def creation_error(self, zone: str, name: str) -> CloudError | None:
        """Return why the last creation of a TPU failed; None if the cloud does not know."""


def zones_of(api: Mapping[str, Any]) -> list[str]:
    """Return the zones that the inventory lists."""
    return [str(zone) for zone in api.get("zones") or [ALL_ZONES]]


def list_nodes(source: Source, zones: Sequence[str]) -> list[Node]:
    """List the TPUs of the zones. Raises PartialAnswer."""
    return [source.parse(entry) for entry in source.list(zones).entries]
