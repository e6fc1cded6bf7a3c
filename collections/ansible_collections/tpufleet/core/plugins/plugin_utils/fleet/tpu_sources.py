"""Where the inventory's TPUs come from: the place where a second source of workers plugs in.

A source lists what it has as JSON, which any cache plugin can keep, reads that into Nodes, and says
which ssh host keys their workers have. All else, such as hosts, groups, variables and filters,
is made from Nodes alone. Today there is one source, the Cloud TPU API's nodes; Compute Engine's TPU
machine types would be the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

from ...module_utils.cloud.host_keys import KnownHost, published_keys
from ...module_utils.cloud.tpu_api import ApiSettings, Listing, TpuApi
from ...module_utils.cloud.tpu_nodes import Node, parse_node


class Source(Protocol):
    """What the inventory needs of a source. Every method raises TpuApiError only."""

    def listed(self, zones: Sequence[str], *, allow_partial: bool) -> Listing:
        """Ask for everything in the zones (``-``: all). No secret, for it may be cached."""

    def node_of(self, data: object) -> Node:
        """Read one entry of the listing, fresh or out of the cache."""

    def host_keys(self, node: Node, *, with_names: bool) -> list[KnownHost]:
        """Give the keys that the workers have published, and their own host names if asked for."""


class TpuNodes:
    """The nodes of the Cloud TPU API; asks nobody before it has to."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._opened: TpuApi | None = None

    @property
    def _api(self) -> TpuApi:
        with self._lock:
            self._opened = self._opened or TpuApi(self._settings)
            return self._opened

    def listed(self, zones: Sequence[str], *, allow_partial: bool) -> Listing:
        """List the nodes, without their metadata: it may hold start scripts with secrets."""
        listing = self._api.list_nodes(zones, allow_partial=allow_partial)
        return Listing([_without_metadata(node) for node in listing.nodes], listing.unreachable)

    def node_of(self, data: object) -> Node:
        """Read a node of the API's JSON."""
        return parse_node(data)

    def host_keys(self, node: Node, *, with_names: bool) -> list[KnownHost]:
        """Read the workers' guest attributes."""
        count = len(node.endpoints)
        found = published_keys(
            self._api, node.zone, node.name, node.key, count, with_names=with_names
        )
        return list(found.values())


def _without_metadata(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: part for name, part in node.items() if name != "metadata"}
