"""Sources of TPUs: the one interface by which the controller reaches a cloud.

``open_source`` chooses the source. A source lists its TPUs as JSON, which any cache plugin can
store, and parses an entry into a Node; everything else (hosts, groups, plan, watch) uses Nodes
alone. Today there is one source, the Cloud TPU API. Compute Engine's TPU machines would be the
next: a class with these methods, and its choice in ``open_source``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from ...module_utils.cloud.compute import ComputeApi
from ...module_utils.cloud.errors import CloudError, QuotaError
from ...module_utils.cloud.host_keys import KnownHost, published_keys
from ...module_utils.cloud.http import Polling, RetryPolicy
from ...module_utils.cloud.names import ALL_ZONES
from ...module_utils.cloud.node_spec import NodeSpec
from ...module_utils.cloud.node_state import (
    NodeOutcome,
    Progress,
    ensure_absent,
    ensure_present,
    outcome_of,
    read_node,
)
from ...module_utils.cloud.nodes import Node, parse_node
from ...module_utils.cloud.queue_state import (
    QueuedOutcome,
    ensure_not_requested,
    ensure_requested,
    queued_resource_of,
)
from ...module_utils.cloud.queued_resource import (
    QueuedResource,
    QueuedResourceSpec,
    parse_queued_resource,
)
from ...module_utils.cloud.quota import QuotaExplainer
from ...module_utils.cloud.session import ApiSettings
from ...module_utils.cloud.tpu_api import Listing, TpuApi
from .spec import FleetEntry


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
    ) -> QueuedOutcome:
        """Delete this very request; it has no TPU."""

    def host_keys(self, node: Node, *, with_names: bool = False) -> Sequence[KnownHost]:
        """Return the ssh host keys that the workers have published, and their host names."""

    def creation_error(self, zone: str, name: str) -> CloudError | None:
        """Return why the last creation of a TPU failed; None if the cloud does not know."""

    def explain_quota(self, refused: QuotaError, spec: NodeSpec) -> QuotaError:
        """Return the error with what holds the used-up quota."""


def open_source(api: Mapping[str, Any], *, retry: RetryPolicy | None = None) -> Source:
    """Open the source that the inventory's variable ``tpu_api`` describes. Raises NotConfigured.

    No request is made, and no credentials are read, before they are needed.
    """
    return CloudTpus(TpuApi(ApiSettings.of(api), retry=retry))


def zones_of(api: Mapping[str, Any]) -> list[str]:
    """Return the zones that the inventory lists."""
    return [str(zone) for zone in api.get("zones") or [ALL_ZONES]]


def list_nodes(source: Source, zones: Sequence[str]) -> list[Node]:
    """List the TPUs of the zones. Raises PartialAnswer."""
    return [source.parse(entry) for entry in source.list(zones).entries]


class CloudTpus:
    """The nodes of the Cloud TPU API."""

    def __init__(self, api: TpuApi) -> None:
        self._api = api
        self.polling = api.polling

    @property
    def compute(self) -> ComputeApi:
        """Compute Engine of the same project, for data disks."""
        return self._api.compute

    def list(self, zones: Sequence[str], *, allow_partial: bool = False) -> Listing:
        """List the nodes without their metadata, which may hold startup scripts with secrets."""
        listing = self._api.list_nodes(zones, allow_partial=allow_partial)
        return Listing([_without_metadata(node) for node in listing.entries], listing.unreachable)

    def parse(self, entry: object) -> Node:
        """Validate a node of the API's JSON."""
        return parse_node(entry)

    def describe(self, zone: str, name: str) -> Node | None:
        """Return one node; None if it does not exist."""
        return read_node(self._api, zone, name)

    def create(
        self,
        tpu: FleetEntry,
        spec: NodeSpec,
        present: Node | None,
        options: ChangeOptions,
        progress: Progress,
    ) -> NodeOutcome:
        """Create or change a node, through the queue where the fleet says so."""
        if tpu.queued and (present is None or present.is_lost):
            return self._create_queued(tpu, spec, present, options, progress)
        return ensure_present(
            self._api,
            spec,
            timeout=options.timeout,
            check=options.check,
            recreate=options.recreate,
            replace_dead=options.replace_dead,
            agreed=options.agreed,
            progress=progress,
            check_owner=options.check_owner,
        )

    def _create_queued(
        self,
        tpu: FleetEntry,
        spec: NodeSpec,
        present: Node | None,
        options: ChangeOptions,
        progress: Progress,
    ) -> NodeOutcome:
        """Request a TPU that does not exist, or is lost, and wait until it is READY."""
        request = _request_for(tpu, spec)
        if present:
            options.check_owner(present)
        created_present = present is not None and present.queued_resource == request.name
        check_owner = (lambda _request: None) if created_present else options.check_owner
        if options.check:
            planned = ensure_requested(
                self._api,
                request,
                timeout=options.timeout,
                check=True,
                replace_dead=options.replace_dead,
                check_owner=check_owner,
            )
            return replace(outcome_of(spec, present, True, created=True), msg=planned.msg)
        if present and not present.queued_resource:
            ensure_absent(
                self._api,
                present.zone,
                present.name,
                timeout=options.timeout,
                agreed={present.key},
            )
        for _ in range(2):
            done = ensure_requested(
                self._api,
                request,
                timeout=options.timeout,
                replace_dead=options.replace_dead,
                progress=progress,
                check_owner=check_owner,
            )
            if done.changed or self.describe(spec.zone, spec.name) is not None:
                break
            # Somebody deleted its TPU, so this request will never create another.
            ensure_not_requested(
                self._api,
                spec.zone,
                request.name,
                timeout=options.timeout,
                agreed={done.request.key} if done.request else (),
                progress=progress,
            )
        outcome = ensure_present(
            self._api,
            spec,
            timeout=options.timeout,
            progress=progress,
            check_owner=options.check_owner,
        )
        return replace(outcome_of(spec, present, True, outcome.node, created=True), msg=done.msg)

    def delete(self, node: Node, options: ChangeOptions, progress: Progress) -> NodeOutcome:
        """Delete a node, and the queued resource that created it and no other."""
        request = None if options.check else queued_resource_of(self._api, node)
        outcome = ensure_absent(
            self._api,
            node.zone,
            node.name,
            timeout=options.timeout,
            check=options.check,
            agreed=_agreed(node.key, options),
            progress=progress,
        )
        if request:
            # Without its TPU it only holds quota.
            ensure_not_requested(
                self._api,
                request.zone,
                request.name,
                timeout=options.timeout,
                agreed={request.key},
            )
        return outcome

    def list_queued(self, zones: Sequence[str]) -> Sequence[QueuedResource]:
        """List the queued resources."""
        return [parse_queued_resource(entry) for entry in self._api.list_queued_resources(zones)]

    def delete_queued(
        self, request: QueuedResource, options: ChangeOptions, progress: Progress
    ) -> QueuedOutcome:
        """Delete a queued resource without TPUs."""
        return ensure_not_requested(
            self._api,
            request.zone,
            request.name,
            timeout=options.timeout,
            check=options.check,
            agreed=_agreed(request.key, options),
            progress=progress,
        )

    def host_keys(self, node: Node, *, with_names: bool = False) -> Sequence[KnownHost]:
        """Read the workers' guest attributes."""
        return published_keys(self._api, node, with_names=with_names)

    def creation_error(self, zone: str, name: str) -> CloudError | None:
        """Return the error of the last creation among the API's operations."""
        return self._api.creation_error(zone, name)

    def explain_quota(self, refused: QuotaError, spec: NodeSpec) -> QuotaError:
        """Return the error with the TPUs and queued resources that hold the quota."""
        return self._quota.explain(refused, spec)

    @cached_property
    def _quota(self) -> QuotaExplainer:
        return QuotaExplainer(self._api)


def _agreed(key: str, options: ChangeOptions) -> Collection[str]:
    """Return what may be deleted; without a list from a person only this one, not a later one."""
    return {key} if options.agreed is None else options.agreed


def _request_for(tpu: FleetEntry, spec: NodeSpec) -> QueuedResourceSpec:
    valid_for = tpu.queued.valid_for if tpu.queued else None
    return QueuedResourceSpec(tpu.name, spec, tier="spot" if spec.spot else "", valid_for=valid_for)


def _without_metadata(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: part for name, part in node.items() if name != "metadata"}
