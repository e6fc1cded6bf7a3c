"""Interface between the controller and a cloud: a source of TPUs.

A source lists its TPUs as JSON, which any cache plugin can store, and parses each entry into a
Node. All other code (hosts, groups, plan, watch) uses only Nodes. The only source so far is the
Cloud TPU API (cloud_tpus.py). To add a source, write a class with the methods of ``Source`` and let
``open_source`` return it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...module_utils.cloud.names import ALL_ZONES

if TYPE_CHECKING:
    from ...module_utils.cloud.changes import ChangeOptions, Outcome
    from ...module_utils.cloud.compute import ComputeApi
    from ...module_utils.cloud.errors import CloudError
    from ...module_utils.cloud.host_keys import KnownHost
    from ...module_utils.cloud.http import Polling
    from ...module_utils.cloud.node_spec import NodeSpec
    from ...module_utils.cloud.nodes import Node
    from ...module_utils.cloud.queued_resource import QueuedResource
    from ...module_utils.cloud.tpu_api import Listing
    from .spec import FleetEntry

INVENTORY_ERROR = "tpu_inventory_error"
"""The inventory variable with the reason why the TPUs could not be listed, for doctor.yml."""


class Source(Protocol):
    """The TPUs of one cloud API. Thread-safe. Methods raise only CloudError.

    Callers recognize a preemption by ``Node.is_lost``, so a source may report the states PREEMPTED
    and TERMINATED only if its cloud says that it took the TPU back.
    """

    polling: Polling

    @property
    def compute(self) -> ComputeApi:
        """The client of the Compute Engine API, for data disks of the TPUs' project."""

    def list(self, zones: Sequence[str], *, allow_partial: bool = False) -> Listing:
        """List the TPUs of the zones (``-``: all), without secrets.

        Raises PartialAnswer if a zone does not respond and ``allow_partial`` is false.
        """

    def parse(self, entry: object) -> Node:
        """Parse one entry of the Listing that list() returns; the Listing may be cached."""

    def describe(self, zone: str, name: str) -> Node | None:
        """Return one TPU; None if it does not exist."""

    def create(
        self, tpu: FleetEntry, spec: NodeSpec, present: Node | None, options: ChangeOptions
    ) -> Outcome:
        """Create or change a TPU, and wait until it is READY.

        ``tpu`` is the entry of the fleet file, ``spec`` its spec for the zone to use. ``present``
        is the existing TPU of this name, as list() returned it; None if there was none.
        """

    def delete(self, node: Node, options: ChangeOptions) -> Outcome:
        """Delete this TPU, never a later TPU of the same name.

        Also deletes the queued resource that created the TPU, if it created no other TPU.
        """

    def list_queued(self, zones: Sequence[str]) -> Sequence[QueuedResource]:
        """List the queued resources of the zones.

        Raises PartialAnswer if a zone does not respond.
        """

    def delete_queued(self, request: QueuedResource, options: ChangeOptions) -> Outcome:
        """Delete a queued resource that has no TPU, but not a later one of the same name."""

    def host_keys(self, node: Node, *, with_names: bool = False) -> Sequence[KnownHost]:
        """Return the published host keys of the workers; ``with_names`` adds their host names."""

    def creation_error(self, zone: str, name: str) -> CloudError | None:
        """Return the error of a TPU's last creation; None if it succeeded or is not recorded."""


def zones_of(api: Mapping[str, Any]) -> list[str]:
    """Return the zones that the inventory lists."""
    return [str(zone) for zone in api.get("zones") or [ALL_ZONES]]


def list_nodes(source: Source, zones: Sequence[str]) -> list[Node]:
    """List the TPUs of the zones (``-``: all). Raises PartialAnswer if a zone does not respond."""
    return [source.parse(entry) for entry in source.list(zones).entries]
