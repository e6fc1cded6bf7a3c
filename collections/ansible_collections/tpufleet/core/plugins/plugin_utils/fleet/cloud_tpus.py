"""Source of TPUs that uses the Cloud TPU API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud.disks import attachable
from ...module_utils.cloud.errors import CloudError, Different, InvalidRequest
from ...module_utils.cloud.host_keys import KnownHost, published_keys
from ...module_utils.cloud.node_diff import compare, outcome_of
from ...module_utils.cloud.node_state import ensure_absent, ensure_present, read_node
from ...module_utils.cloud.nodes import Node, parse_node
from ...module_utils.cloud.queue_state import (
    ensure_not_requested,
    ensure_requested,
    queued_resource_of,
    wait_for_suspension,
)
from ...module_utils.cloud.queued_resource import (
    QueuedResource,
    QueuedResourceSpec,
    parse_queued_resource,
)
from ...module_utils.cloud.session import ApiSettings
from ...module_utils.cloud.tpu_api import Listing, TpuApi

if TYPE_CHECKING:
    from ...module_utils.cloud.changes import ChangeOptions, Outcome
    from ...module_utils.cloud.compute import ComputeApi
    from ...module_utils.cloud.http import RetryPolicy
    from ...module_utils.cloud.node_spec import NodeSpec
    from .source import Source
    from .spec import FleetEntry


def open_source(api: Mapping[str, Any], *, retry: RetryPolicy | None = None) -> Source:
    """Return the source that the inventory's variable ``tpu_api`` describes. Raises NotConfigured.

    Credentials are not read before the first request. ``retry`` says which failed requests
    are repeated, and how often; None for the default.
    """
    return CloudTpus(TpuApi(ApiSettings.of(api), retry=retry))


class CloudTpus:
    """Source of TPUs that uses the Cloud TPU API. For the methods' arguments see source.Source."""

    def __init__(self, api: TpuApi) -> None:
        self._api = api
        self.polling = api.polling

    @property
    def compute(self) -> ComputeApi:
        """The client of the Compute Engine API, for the project's data disks."""
        return self._api.compute

    def list(self, zones: Sequence[str], *, allow_partial: bool = False) -> Listing:
        """List the TPUs without their metadata, which may hold startup scripts with secrets."""
        listing = self._api.list_nodes(zones, allow_partial=allow_partial)
        return Listing([_without_metadata(node) for node in listing.entries], listing.unreachable)

    def parse(self, entry: object) -> Node:
        """Parse a TPU from the API's JSON."""
        return parse_node(entry)

    def describe(self, zone: str, name: str) -> Node | None:
        """Return one TPU; None if it does not exist."""
        return read_node(self._api, zone, name)

    def create(
        self, tpu: FleetEntry, spec: NodeSpec, present: Node | None, options: ChangeOptions
    ) -> Outcome:
        """Create or change a TPU; create it by a queued resource if ``tpu.queued`` is set."""
        if tpu.queued and present and present.is_being_deleted:
            # Google is already deleting this TPU, so ensure_absent only waits until it is gone.
            gone_options = replace(options, confirmed={present.key})
            ensure_absent(self._api, present.zone, present.name, gone_options)
            present = None
        replaces_lost = present is not None and present.is_lost and options.replaces_lost
        if tpu.queued and (present is None or replaces_lost):
            return self._create_queued(tpu, spec, present, options)
        if present and present.queued_resource:
            attachable_spec = attachable(self.compute, spec, present)
            recreates = options.recreate and bool(compare(attachable_spec, present).immutable)
            if replaces_lost or recreates:
                return self._recreate_with_request(tpu, spec, present, options)
        return ensure_present(self._api, spec, options)

    def _create_queued(
        self, tpu: FleetEntry, spec: NodeSpec, present: Node | None, options: ChangeOptions
    ) -> Outcome:
        """Create a missing or preempted TPU by a queued resource, and wait until it is READY."""
        request, request_options = _request_for(tpu, spec), options
        if present:
            options.check_owner(present)
        request_created_tpu = present is not None and present.queued_resource == request.name
        if request_created_tpu:
            request_options = replace(options, check_owner=lambda _request: None)
        if options.check:
            planned = ensure_requested(self._api, request, request_options)
            outcome = outcome_of(spec, present, True, created=True)
            return replace(outcome, msg=planned.msg) if planned.changed else outcome
        if present and request_created_tpu:
            wait_for_suspension(self._api, present, options)
        elif present:
            self.delete(present, replace(options, confirmed={present.key}))
        for _ in range(2):
            requested = ensure_requested(self._api, request, request_options)
            if requested.changed or self.describe(spec.zone, spec.name) is not None:
                break
            # The TPU was deleted, but its queued resource still exists. A queued resource never
            # creates its TPU again, so delete it and request a new one.
            keys = {requested.request.key} if requested.request else ()
            delete_options = replace(options, confirmed=keys)
            ensure_not_requested(self._api, spec.zone, request.name, delete_options)
        keep_options = replace(options, recreate=False, replace_dead=False)
        outcome = ensure_present(self._api, spec, keep_options)
        return replace(
            outcome_of(spec, present, True, outcome.node, created=True), msg=requested.msg
        )

    def _recreate_with_request(
        self, tpu: FleetEntry, spec: NodeSpec, present: Node, options: ChangeOptions
    ) -> Outcome:
        """Delete a TPU and the queued resource that created it, and create the TPU again."""
        options.check_owner(present)
        if present.multislice:
            raise Different(
                f"TPU {present.where} is one slice of queued resource {present.queued_resource}, "
                "and can't be recreated alone. Delete and create the queued resource with the "
                "module tpufleet.core.tpu_queued_resource (docs/fleets.md)"
            )
        confirmed = {present.key} if present.is_lost else options.confirmed
        self.delete(present, replace(options, confirmed=confirmed))
        after = None
        if not options.check:
            after = self.create(tpu, spec, None, options).node
        outcome = outcome_of(spec, present, True, after, created=True)
        return replace(outcome, replaced=None if present.is_lost else present)

    def delete(self, node: Node, options: ChangeOptions) -> Outcome:
        """Delete a TPU, and its queued resource if that created no other TPU."""
        request = None if options.check else queued_resource_of(self._api, node)
        outcome = ensure_absent(self._api, node.zone, node.name, _confirming(node.key, options))
        if request:
            # A queued resource without its TPU only holds quota.
            request_options = replace(options, confirmed={request.key})
            ensure_not_requested(self._api, request.zone, request.name, request_options)
        return outcome

    def list_queued(self, zones: Sequence[str]) -> Sequence[QueuedResource]:
        """List the queued resources of the zones."""
        return [parse_queued_resource(entry) for entry in self._api.list_queued_resources(zones)]

    def delete_queued(self, request: QueuedResource, options: ChangeOptions) -> Outcome:
        """Delete a queued resource that has no TPUs."""
        try:
            return ensure_not_requested(
                self._api, request.zone, request.name, _confirming(request.key, options)
            )
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{error}. If Google is creating the TPU, run the playbook again when the "
                "TPU exists"
            ) from None

    def host_keys(self, node: Node, *, with_names: bool = False) -> Sequence[KnownHost]:
        """Return the host keys in the workers' guest attributes."""
        return published_keys(self._api, node, with_names=with_names)

    def creation_error(self, zone: str, name: str) -> CloudError | None:
        """Return the error of the last operation that created the TPU.

        Returns None if there is no such operation, or if it has no error.
        """
        return self._api.creation_error(zone, name)


def _confirming(key: str, options: ChangeOptions) -> ChangeOptions:
    """Return options that allow deleting only the resource ``key``.

    If the user has confirmed a list of deletions, returns ``options`` unchanged.
    """
    return options if options.confirmed is not None else replace(options, confirmed={key})


def _request_for(tpu: FleetEntry, spec: NodeSpec) -> QueuedResourceSpec:
    valid_for = tpu.queued.valid_for if tpu.queued else None
    return QueuedResourceSpec(tpu.name, spec, tier="spot" if spec.spot else "", valid_for=valid_for)


def _without_metadata(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in node.items() if name != "metadata"}
