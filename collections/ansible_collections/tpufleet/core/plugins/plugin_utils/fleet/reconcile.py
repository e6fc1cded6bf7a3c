"""Parallel creation, change and deletion of a fleet's TPUs, queued resources and disks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ...module_utils.cloud import errors
from ...module_utils.cloud.changes import ChangeOptions, Outcome
from ...module_utils.cloud.disks import StoredDisk, ensure_disk_absent
from ...module_utils.cloud.host_keys import KnownHostsFile, remember_host_keys
from ...module_utils.cloud.quota import QuotaExplainer
from .source import Source, list_nodes

if TYPE_CHECKING:
    from ...module_utils.cloud.node_spec import NodeSpec
    from ...module_utils.cloud.nodes import Node
    from ...module_utils.cloud.queued_resource import QueuedResource
    from .spec import FleetEntry

MAX_PARALLEL = 16
#: Number of earlier pauses after which Polling.pause waits for its maximum of 10 s.
_LONGEST_PAUSE = 12


@dataclass(frozen=True, kw_only=True)
class Result(Outcome):
    """Outcome of the change of one TPU, queued resource or disk.

    If the change failed, ``msg`` is the error, and ``reason`` is its code.
    """

    name: str
    zone: str
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether the change failed."""
        return bool(self.reason)


def create(
    source: Source,
    fleet: Sequence[FleetEntry],
    present: Mapping[str, Node],
    options: ChangeOptions,
) -> list[Result]:
    """Create or change every TPU of the fleet and wait until it is READY.

    If one TPU fails, the others continue. If a zone has no capacity, the next zone of the TPU is
    tried. If quota is used up, the TPU fails with an error that says what holds the quota.
    ``present`` contains the existing TPUs of the fleet, by name.
    """
    quota = QuotaExplainer(lambda zone: (list_nodes(source, [zone]), source.list_queued([zone])))

    def create_one(tpu: FleetEntry) -> Result:
        return _create_one(source, quota, tpu, present.get(tpu.name), options)

    return _in_parallel(create_one, [(tpu.name, tpu.zones[0], tpu) for tpu in fleet])


def delete(source: Source, nodes: Sequence[Node], options: ChangeOptions) -> list[Result]:
    """Delete TPUs, and remove their host keys from the known_hosts file."""

    def delete_one(node: Node) -> Result:
        outcome = source.delete(node, options)
        _forget(node, options)
        if outcome.changed and not options.check:
            options.report(node.name, "deleted")
        return _result(node.name, node.zone, outcome)

    return _in_parallel(delete_one, [(node.name, node.zone, node) for node in nodes])


def delete_requests(
    source: Source, requests: Sequence[QueuedResource], options: ChangeOptions
) -> list[Result]:
    """Delete queued resources that have no TPUs."""

    def delete_one(request: QueuedResource) -> Result:
        return _result(request.name, request.zone, source.delete_queued(request, options))

    return _in_parallel(delete_one, [(request.name, request.zone, request) for request in requests])


def delete_disks(
    source: Source, disks: Sequence[StoredDisk], options: ChangeOptions
) -> list[Result]:
    """Delete data disks."""

    def delete_one(disk: StoredDisk) -> Result:
        return _result(disk.name, disk.zone, ensure_disk_absent(source.compute, disk, options))

    return _in_parallel(delete_one, [(disk.name, disk.zone, disk) for disk in disks])


def _create_one(
    source: Source,
    quota: QuotaExplainer,
    tpu: FleetEntry,
    present: Node | None,
    options: ChangeOptions,
) -> Result:
    """Create or change one TPU in its first zone with capacity.

    If no zone has capacity, try all zones again for ``options.wait_for_capacity`` seconds.
    """
    deadline = source.polling.deadline_in(options.wait_for_capacity)
    report = partial(options.report, tpu.name)
    while True:
        for spec in _existing_zone_first(tpu.specs, present):
            try:
                outcome = source.create(tpu, spec, present, options)
            except errors.CapacityError as error:
                last_error = error
                report(f"no capacity in {spec.zone}")
                continue
            except errors.QuotaError as error:
                raise quota.explain(error, spec) from None
            if present and outcome.node and outcome.node.key != present.key:
                _forget(present, options)
            warnings = _remember_keys(source, outcome.node, options)
            if outcome.changed and not options.check:
                report("READY")
            return replace(_result(spec.name, spec.zone, outcome), warnings=warnings)
        try:
            source.polling.pause(f"find capacity for TPU {tpu.name}", _LONGEST_PAUSE, deadline)
        except errors.DeadlineExceeded:
            raise last_error from None


def _existing_zone_first(specs: Sequence[NodeSpec], present: Node | None) -> list[NodeSpec]:
    """Return the specs in the order to try them: the zone of the existing TPU is the first."""
    return sorted(specs, key=lambda spec: present is None or spec.zone != present.zone)


def _remember_keys(source: Source, node: Node | None, options: ChangeOptions) -> tuple[str, ...]:
    if node is None or not options.known_hosts_file or options.check:
        return ()
    warnings = remember_host_keys(
        lambda: source.host_keys(node, with_names=True),
        node,
        options.known_hosts_file,
        source.polling,
        partial(options.report, node.name),
    )
    return tuple(warnings)


def _forget(node: Node, options: ChangeOptions) -> None:
    if options.known_hosts_file and not options.check:
        KnownHostsFile(options.known_hosts_file).forget(node.key)


def _result(name: str, zone: str, outcome: Outcome) -> Result:
    return Result(**vars(outcome), name=name, zone=zone)


def _in_parallel[T](
    work: Callable[[T], Result], items: Sequence[tuple[str, str, T]]
) -> list[Result]:
    """Call ``work`` for each item in parallel; a failed call returns a Result with the error.

    Each item is a tuple of a name, a zone and the argument for ``work``. If the call fails, name
    and zone identify the item in the Result.
    """

    def run_one(named_item: tuple[str, str, T]) -> Result:
        name, zone, item = named_item
        try:
            return work(item)
        except errors.CloudError as error:
            failure = Outcome(False, str(error), {}, {})
            return replace(_result(name, zone, failure), reason=error.reason)

    if not items:
        return []
    with ThreadPoolExecutor(max_workers=min(MAX_PARALLEL, len(items))) as pool:
        return list(pool.map(run_one, items))
