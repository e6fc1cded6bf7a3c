"""Client of Google's Cloud TPU API v2: nodes, queued resources, what zones offer.

Reference: https://cloud.google.com/tpu/docs/reference/rest/v2. Methods return unvalidated JSON;
nodes.py and queued_resource.py parse it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

from . import errors
from .compute import ComputeApi
from .fields import check_zone
from .http import GoogleApi, list_of
from .names import ALL_ZONES, last_part


@dataclass(frozen=True)
class Listing:
    """Listed resources as JSON. ``unreachable`` lists the zones that did not respond."""

    entries: list[Mapping[str, Any]]
    unreachable: tuple[str, ...] = ()


class TpuApi(GoogleApi):
    """Cloud TPU API client for one project. Thread-safe. Methods raise only CloudError.

    Methods that take a ``deadline`` wait until the change is done. They raise DeadlineExceeded when
    ``polling.clock`` reaches the deadline.
    """

    @property
    def _address(self) -> str:
        return self.settings.address

    @cached_property
    def compute(self) -> ComputeApi:
        """Compute Engine client for the same project."""
        return ComputeApi(self.settings, retry=self.retry, polling=self.polling)

    # --- nodes -----------------------------------------------------------------------------------

    def list_nodes(
        self, zones: Sequence[str] = (ALL_ZONES,), *, allow_partial: bool = False
    ) -> Listing:
        """List the nodes of the zones (``-``: all) in parallel.

        Raises PartialAnswer if the API reports zones that did not respond, unless
        ``allow_partial``.
        """
        return self._list("nodes", "TPUs", zones, allow_partial)

    def list_queued_resources(self, zones: Sequence[str] = (ALL_ZONES,)) -> list[Mapping[str, Any]]:
        """List the queued resources of the zones (``-``: all).

        Raises PartialAnswer if the API reports zones that did not respond.
        """
        return self._list("queuedResources", "queued resources", zones, False).entries

    def _list(self, key: str, resources: str, zones: Sequence[str], allow_partial: bool) -> Listing:
        for zone in zones:
            if zone != ALL_ZONES:
                check_zone(zone)
        requested = (ALL_ZONES,) if ALL_ZONES in zones else tuple(dict.fromkeys(zones))
        if not requested:
            raise errors.NotConfigured(
                "zones is empty. Set it to a list of zones, or to '-' for all"
            )

        def list_zone(zone: str) -> Listing:
            try:
                return self._list_zone(key, resources, zone)
            except (errors.Unavailable, errors.NoAnswer):
                if not allow_partial or zone == ALL_ZONES:
                    raise
                return Listing([], (zone,))

        with ThreadPoolExecutor(max_workers=min(8, len(requested))) as pool:
            answers = list(pool.map(list_zone, requested))
        unreachable = tuple(sorted({zone for answer in answers for zone in answer.unreachable}))
        if unreachable and not allow_partial:
            raise errors.PartialAnswer(
                f"the list of {resources} is partial: no answer from {', '.join(unreachable)}. Try "
                "again (`TPUFLEET_ON_ERROR=report ansible-playbook playbooks/doctor.yml` checks "
                "the API), list fewer zones, or set allow_partial: true in tpu.yml"
            )
        return Listing([entry for answer in answers for entry in answer.entries], unreachable)

    def _list_zone(self, key: str, resources: str, zone: str) -> Listing:
        action = f"list the {resources} of " + (
            "all zones" if zone == ALL_ZONES else f"zone {zone}"
        )
        entries: list[Mapping[str, Any]] = []
        unreachable: set[str] = set()
        for page in self._http.pages(f"{self._zone_path(zone)}/{key}", action):
            entries += list_of(page, key, Mapping, action)
            unreachable |= {last_part(name) for name in list_of(page, "unreachable", str, action)}
        return Listing(entries, tuple(unreachable))

    def get_node(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Return a node as JSON, None if it does not exist."""
        return self._get(self._node_path(zone, name), f"read TPU {name} ({zone})")

    def create_node(self, zone: str, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Request the creation of a node; return the operation.

        After AlreadyExists and NoAnswer, the caller must read the node, because an earlier try
        whose response was lost may have created it. The API never creates two nodes of one name.
        """
        return self._http.ask(
            "POST",
            f"{self._zone_path(zone)}/nodes",
            f"create TPU {name} ({zone})",
            params={"nodeId": name},
            body=body,
        )

    def patch_node(
        self, zone: str, name: str, body: Mapping[str, Any], mask: Iterable[str], deadline: float
    ) -> None:
        """Set the fields of a node that ``mask`` names to their values in ``body``. Idempotent."""
        action, path = f"change TPU {name} ({zone})", self._node_path(zone, name)
        params = {"updateMask": ",".join(mask)}
        operation = self._http.ask("PATCH", path, action, params=params, body=body)
        self.wait(operation, action, deadline)

    def get_data_disks(self, zone: str, name: str) -> Mapping[str, Any]:
        """Return a node as JSON, with the workers to which each data disk is attached.

        Only v2alpha1 reports these workers. Raises NotFound.
        """
        action = f"read the disks of TPU {name} ({zone})"
        return self._http.ask("GET", self._alpha_path(zone, name), action)

    def set_data_disks(
        self, zone: str, name: str, disks: Sequence[Mapping[str, Any]], deadline: float
    ) -> None:
        """Attach exactly these data disks to a node. Idempotent."""
        action, path = f"change the disks of TPU {name} ({zone})", self._alpha_path(zone, name)
        params, body = {"updateMask": "data_disks"}, {"dataDisks": list(disks)}
        operation = self._http.ask("PATCH", path, action, params=params, body=body)
        self.wait(operation, action, deadline)

    def delete_node(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Request the deletion of a node, without retries.

        Returns the operation, or None if the node does not exist.
        """
        return self._delete(self._node_path(zone, name), f"delete TPU {name} ({zone})")

    def power_node(self, zone: str, name: str, verb: str, deadline: float) -> None:
        """Start or stop a node (``verb`` is ``start`` or ``stop``).

        Never retried after a lost response (NoAnswer), because the API refuses a second request
        while the first is in progress.
        """
        action = f"{verb} TPU {name} ({zone})"
        path = f"{self._node_path(zone, name)}:{verb}"
        operation = self._http.ask("POST", path, action, body={}, idempotent=False)
        self.wait(operation, action, deadline)

    def guest_attributes(
        self, zone: str, name: str, query_path: str, workers: Sequence[int] = ()
    ) -> list[dict[str, str]]:
        """Return the guest attributes below ``query_path``, one dictionary for each worker.

        ``workers`` are the numbers of the workers to read; empty for all workers of the node.
        """
        action = f"read the guest attributes of TPU {name} ({zone})"
        body = {"queryPath": query_path, "workerIds": [str(worker) for worker in workers]}
        answer = self._http.ask(
            "POST", f"{self._node_path(zone, name)}:getGuestAttributes", action, body=body
        )
        published = []
        for worker in list_of(answer, "guestAttributes", Mapping, action):
            items = list_of(worker.get("queryValue") or {}, "items", Mapping, action)
            published.append(
                {str(item.get("key", "")): str(item.get("value", "")) for item in items}
            )
        return published

    # --- what zones offer ------------------------------------------------------------------------

    def list_accelerator_types(self, zone: str) -> list[str]:
        """List the accelerator types that a zone offers."""
        return self._names(f"{self._zone_path(zone)}/acceleratorTypes", "acceleratorTypes", "type")

    def list_runtime_versions(self, zone: str) -> list[str]:
        """List the runtime versions that a zone offers."""
        return self._names(f"{self._zone_path(zone)}/runtimeVersions", "runtimeVersions", "version")

    def list_zones(self) -> list[str]:
        """List the zones that have TPUs."""
        return self._names(self._zone_path("").rstrip("/"), "locations", "locationId")

    def _names(self, path: str, kind: str, key: str) -> list[str]:
        action = f"list the {kind}"
        pages = self._http.pages(path, action)
        entries = [entry for page in pages for entry in list_of(page, kind, Mapping, action)]
        return [str(entry.get(key)) for entry in entries if entry.get(key)]

    # --- queued resources ------------------------------------------------------------------------

    def get_queued_resource(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Return a queued resource as JSON, None if it does not exist."""
        return self._get(self._queued_path(zone, name), f"read queued resource {name} ({zone})")

    def create_queued_resource(
        self, zone: str, name: str, body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Create a queued resource; return the operation, which ends once the resource is queued.

        All tries share one request id, so that they create one queued resource. AlreadyExists means
        that another client created it.
        """
        params = {"queuedResourceId": name, "requestId": str(uuid.uuid4())}
        action = f"create queued resource {name} ({zone})"
        path = f"{self._zone_path(zone)}/queuedResources"
        return self._http.ask("POST", path, action, params=params, body=body)

    def delete_queued_resource(
        self, zone: str, name: str, *, force: bool
    ) -> Mapping[str, Any] | None:
        """Request the deletion of a queued resource, without retries; return the operation.

        Returns None if the queued resource does not exist. ``force`` also deletes the TPUs that the
        queued resource has created.
        """
        action = f"delete queued resource {name} ({zone})"
        return self._delete(self._queued_path(zone, name), action, {"force": str(force).lower()})

    def creation_error(self, zone: str, name: str) -> errors.CloudError | None:
        """Return the error with which a node's last creation failed; None if it has not failed."""
        action = f"create TPU {name} ({zone})"
        creations: list[tuple[str, object]] = []
        for page in self._http.pages(f"{self._zone_path(zone)}/operations", action):
            for operation in list_of(page, "operations", Mapping, action):
                metadata = operation.get("metadata")
                if (
                    isinstance(metadata, Mapping)
                    and str(metadata.get("target")).endswith(f"/nodes/{name}")
                    and metadata.get("verb") == "create"
                ):
                    creations.append((str(metadata.get("createTime")), operation.get("error")))
        _, error = max(creations, key=lambda entry: entry[0], default=("", None))
        return errors.from_operation(error, action) if isinstance(error, Mapping) else None

    def _operation_path(self, operation: Mapping[str, Any], action: str) -> str:
        name = operation.get("name")
        # A response without an operation, such as Empty, means success.
        return f"/v2/{quote(name, safe='/')}" if isinstance(name, str) and name else ""

    def _zone_path(self, zone: str) -> str:
        project = quote(self.settings.project, safe=":")
        return f"/v2/projects/{project}/locations/{quote(zone, safe='')}"

    def _queued_path(self, zone: str, name: str) -> str:
        return f"{self._zone_path(zone)}/queuedResources/{quote(name, safe='')}"

    def _node_path(self, zone: str, name: str) -> str:
        return f"{self._zone_path(zone)}/nodes/{quote(name, safe='')}"

    def _alpha_path(self, zone: str, name: str) -> str:
        return self._node_path(zone, name).replace("/v2/", "/v2alpha1/", 1)
