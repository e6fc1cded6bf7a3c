"""Many TPUs at once: which are missing, there, unwanted; then each of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.cloud import tpu_errors as errors
from ...module_utils.cloud.data_disks import MadeDisk, ensure_no_disk
from ...module_utils.cloud.host_keys import KnownHostsFile, remember_host_keys
from ...module_utils.cloud.quota_holders import Explainer, Quota
from ...module_utils.cloud.tpu_api import TpuApi
from ...module_utils.cloud.tpu_lifecycle import OwnerCheck, ensure_absent, ensure_present
from ...module_utils.cloud.tpu_nodes import DEAD_STATES, Node, parse_node
from ...module_utils.cloud.tpu_queue import ensure_not_requested, request_of
from ...module_utils.cloud.tpu_requests import Request
from ...module_utils.cloud.tpu_wanted import Outcome, Wanted, facts_of, status_of
from .fleet import FleetTpu
from .tpu_queued import have_queued

AT_ONCE = 16
#: How many TPUs are named to who asks for one that isn't there.
NAMED = 8
Tell = Callable[[str, str], None]


@dataclass(frozen=True)
class Survey:
    """The fleet against what is there. ``unwanted`` exist, but the fleet file doesn't name them."""

    present: Mapping[str, Node]
    unwanted: tuple[Node, ...]


@dataclass(frozen=True)
class Options:
    """How to go about it; times in seconds. ``wait_for_capacity`` of 0: one try in each zone."""

    check: bool = False
    recreate: bool = False
    replace_dead: bool = False
    timeout: float = 1800.0
    wait_for_capacity: float = 0.0
    known_hosts_file: str = ""
    #: The living TPUs that may be deleted, by Node.key, as a person agreed to; None: any.
    agreed: frozenset[str] | None = None
    #: Raises TpuApiError for an existing TPU that ``create`` must leave as it is.
    check_owner: OwnerCheck = lambda _node: None


@dataclass(frozen=True)
class Done:
    """What became of one TPU; ``error`` is empty where it went well."""

    name: str
    zone: str
    changed: bool
    msg: str
    node: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    reason: str = ""
    replaced: Node | None = None

    @property
    def failed(self) -> bool:
        """Tell whether it went wrong."""
        return bool(self.reason)


def survey(
    api: TpuApi,
    fleet: Sequence[FleetTpu],
    zones: Sequence[str],
    is_own: Callable[[Node], bool] = lambda _node: True,
) -> Survey:
    """List the zones whole and sort what is there. Raises PartialAnswer, NotConfigured."""
    nodes = [parse_node(node) for node in api.list_nodes(zones).nodes]
    return sort_nodes(fleet, nodes, zones, is_own)


def sort_nodes(
    fleet: Sequence[FleetTpu],
    nodes: Iterable[Node],
    zones: Sequence[str],
    is_own: Callable[[Node], bool] = lambda _node: True,
) -> Survey:
    """Find each TPU of the fleet among the nodes, in a zone it may be in.

    Of several with its name, the fleet's own comes before another's, then a living one first.
    """
    for tpu in fleet:
        unseen = [zone for zone in tpu.zones if zone not in zones and "-" not in zones]
        if unseen:
            raise errors.NotConfigured(
                f"tpu_fleet, {tpu.name}: zone {unseen[0]} is not listed by the inventory "
                f"({', '.join(zones)}): add it to zones in tpu.yml"
            )
    nodes = list(nodes)
    present: dict[str, Node] = {}
    for tpu in fleet:
        candidates = [node for node in nodes if node.name == tpu.name and node.zone in tpu.zones]
        candidates.sort(
            key=lambda node: (
                not is_own(node),
                node.state in DEAD_STATES,
                tpu.zones.index(node.zone),
            )
        )
        if candidates:
            present[tpu.name] = candidates[0]
    taken = {(node.zone, node.name) for node in present.values()}
    return Survey(present, tuple(node for node in nodes if (node.zone, node.name) not in taken))


def find(nodes: Iterable[Node], name: str, zone: str = "", *, known: bool = False) -> list[Node]:
    """Find the one TPU of this name; none of a ``known`` name. Raises NotConfigured.

    That is for a name that nobody knows, and for one that several have.
    """
    nodes = list(nodes)
    found = [node for node in nodes if node.name == name and zone in ("", node.zone)]
    if not found and not known:
        where = f"in zone {zone}" if zone else "in the listed zones"
        there = sorted(f"{node.name} ({node.zone})" for node in nodes)
        more = f" and {len(there) - NAMED} more" if len(there) > NAMED else ""
        raise errors.NotConfigured(
            f"there is no TPU called {name!r} {where}; there "
            + (f"are {', '.join(there[:NAMED])}{more}" if there else "is none at all")
        )
    if len(found) > 1:
        zones = ", ".join(sorted(node.zone for node in found))
        raise errors.NotConfigured(
            f"there is a TPU {name} in several zones ({zones}): say -e zone="
        )
    return found


def create(
    api: TpuApi,
    fleet: Sequence[FleetTpu],
    present: Mapping[str, Node],
    options: Options,
    tell: Tell,
) -> list[Done]:
    """Have every TPU of the fleet READY. One that fails leaves the others alone.

    Without capacity a TPU goes on to its next zone; a quota that is used up stops it, and says what
    holds the quota.
    """
    explainer = Explainer(api)

    def one(tpu: FleetTpu) -> Done:
        seen = present.get(tpu.name)
        maker = _Maker(api, tpu, seen, options, lambda state: tell(tpu.name, state), explainer)
        done = _guarded(tpu.name, tpu.zones[0], maker.create)
        if done.changed and not options.check:
            tell(tpu.name, "READY")
        return done

    return _side_by_side(one, fleet)


def delete_requests(
    api: TpuApi, requests: Sequence[Request], options: Options, tell: Tell
) -> list[Done]:
    """Have queued resources without TPUs gone."""

    def gone(request: Request) -> Done:
        done = ensure_not_requested(
            api,
            request.zone,
            request.name,
            timeout=options.timeout,
            check=options.check,
            agreed=frozenset({request.key}) if options.agreed is None else options.agreed,
            progress=lambda state: tell(request.name, state),
        )
        return Done(
            request.name, request.zone, done.changed, done.msg, before=done.before, after=done.after
        )

    return _side_by_side(
        lambda request: _guarded(request.name, request.zone, lambda: gone(request)), requests
    )


def delete(api: TpuApi, nodes: Sequence[Node], options: Options, tell: Tell) -> list[Done]:
    """Have the TPUs gone, and their host keys forgotten."""

    def one(node: Node) -> Done:
        done = _guarded(node.name, node.zone, lambda: _delete_one(api, node, options, tell))
        if done.changed and not options.check:
            tell(node.name, "gone")
        return done

    return _side_by_side(one, nodes)


def delete_disks(api: TpuApi, disks: Sequence[MadeDisk], options: Options) -> list[Done]:
    """Have data disks gone, where a person agreed to it."""

    def gone(disk: MadeDisk) -> Done:
        if options.agreed is not None and disk.key not in options.agreed:
            return Done(disk.name, disk.zone, changed=False, msg=f"the disk {disk.name} stays")
        msg = ensure_no_disk(api, disk, timeout=options.timeout, check=options.check)
        return Done(disk.name, disk.zone, changed=True, msg=msg, before=disk.described())

    return _side_by_side(lambda disk: _guarded(disk.name, disk.zone, lambda: gone(disk)), disks)


def _delete_one(api: TpuApi, node: Node, options: Options, tell: Tell) -> Done:
    request = None if options.check else request_of(api, node)
    outcome = ensure_absent(
        api,
        node.zone,
        node.name,
        timeout=options.timeout,
        check=options.check,
        agreed=frozenset({node.key}) if options.agreed is None else options.agreed,
        progress=lambda state: tell(node.name, state),
    )
    _forget(node, options)
    if request:
        # Without its TPU it makes none, and only holds quota.
        ensure_not_requested(
            api, request.zone, request.name, timeout=options.timeout, agreed={request.key}
        )
    return _done(node.name, node.zone, outcome)


def _forget(node: Node, options: Options) -> None:
    if options.known_hosts_file and not options.check:
        KnownHostsFile(options.known_hosts_file).forget(node.key)


@dataclass(frozen=True)
class _Maker:
    """One TPU of the fleet in the making."""

    api: TpuApi
    tpu: FleetTpu
    present: Node | None
    options: Options
    tell: Callable[[str], None]
    explainer: Explainer

    def create(self) -> Done:
        """Have it in the first zone that has it, for as long as was said."""
        deadline = self.api.deadline_in(self.options.wait_for_capacity)
        tried = 0
        while True:
            for choice in _order(self.tpu.choices, self.present):
                try:
                    outcome = self._have(choice)
                except errors.CapacityError as none_free:
                    full = none_free
                    self.tell(f"no capacity in {choice.zone}")
                    continue
                except errors.QuotaError as refused:
                    spot = choice.spot or choice.preemptible
                    quota = Quota.of(choice.kind, spot, choice.zone)
                    raise self.explainer.explained(refused, quota) from None
                if self.present and outcome.node and outcome.node.key != self.present.key:
                    _forget(self.present, self.options)
                return _with_host_keys(self.api, choice, outcome, self.options, self.tell)
            try:
                self.api.pause(f"find capacity for TPU {self.tpu.name}", tried + 12, deadline)
            except errors.DeadlineExceeded:
                raise full from None
            tried += 1

    def _have(self, choice: Wanted) -> Outcome:
        options = self.options
        if self.tpu.queued and (self.present is None or self.present.state in DEAD_STATES):
            return have_queued(
                self.api,
                self.tpu,
                self.present,
                timeout=options.timeout,
                check=options.check,
                replace_dead=options.replace_dead,
                tell=self.tell,
                check_owner=options.check_owner,
            )
        return ensure_present(
            self.api,
            choice,
            timeout=options.timeout,
            check=options.check,
            recreate=options.recreate,
            replace_dead=options.replace_dead,
            agreed=options.agreed,
            progress=self.tell,
            check_owner=options.check_owner,
        )


def _order(choices: Sequence[Wanted], present: Node | None) -> list[Wanted]:
    """Put the zone where it is before the others."""
    return sorted(choices, key=lambda choice: present is None or choice.zone != present.zone)


def _with_host_keys(
    api: TpuApi, choice: Wanted, outcome: Outcome, options: Options, tell: Callable[[str], None]
) -> Done:
    warnings: tuple[str, ...] = ()
    if outcome.node and options.known_hosts_file and not options.check:
        silent = remember_host_keys(api, outcome.node, options.known_hosts_file, tell)
        warnings = tuple(
            f"worker {worker} of TPU {choice.where} published no ssh host keys" for worker in silent
        )
    return _done(choice.name, choice.zone, outcome, warnings)


def _done(name: str, zone: str, outcome: Outcome, warnings: tuple[str, ...] = ()) -> Done:
    node = status_of(outcome.node) if outcome.node else {}
    return Done(
        name,
        zone,
        outcome.changed,
        outcome.msg,
        node,
        outcome.before,
        outcome.after,
        warnings,
        replaced=outcome.replaced,
    )


def _guarded(name: str, zone: str, work: Callable[[], Done]) -> Done:
    try:
        return work()
    except errors.TpuApiError as error:
        return Done(name, zone, changed=False, msg=str(error), reason=error.reason)


def _side_by_side[T](work: Callable[[T], Done], items: Sequence[T]) -> list[Done]:
    if not items:
        return []
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(items))) as pool:
        return list(pool.map(work, items))


def described(node: Node) -> dict[str, Any]:
    """Give what a person wants to know of a TPU before deleting it; ``words`` says it in a line."""
    facts = facts_of(node)
    kind = f"{node.accelerator_type}{', spot' if node.spot else ''}"
    workers = f"{len(node.endpoints)} worker{'' if len(node.endpoints) == 1 else 's'}"
    return {
        **{key: facts[key] for key in ("name", "zone", "accelerator_type", "spot")},
        "id": node.key,
        "state": node.state,
        "workers": len(node.endpoints),
        "words": f"TPU {node.name} ({node.zone}, {kind}, {node.state}, {workers})",
    }
