"""State of one TPU: how it differs from the desired state, and the change to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from . import errors
from .deletion import Found, delete_exactly
from .disks import ensure_disks
from .names import last_part
from .node_spec import KEYS_ENTRY, SCHEDULING_FLAGS, NodeSpec
from .nodes import Node, parse_node
from .outcome import Outcome
from .refusals import explain_refusal
from .tpu_api import TpuApi

Progress = Callable[[str], None]
#: Raises CloudError for a TPU that must be left as it is.
OwnerCheck = Callable[[Node], None]

_PATHS = ("network", "subnetwork")
_PLAIN_FACTS = (
    "runtime_version",
    *SCHEDULING_FLAGS,
    *_PATHS,
    "external_ip",
    "service_account",
    "secure_boot",
    "description",
    "labels",
)


@dataclass(frozen=True)
class NodeOutcome(Outcome):
    """The outcome for a TPU; ``replaced`` is the living one that was deleted to recreate it."""

    node: Node | None = None
    replaced: Node | None = None


@dataclass(frozen=True)
class Differences:
    """Where a TPU differs from its spec: a line for each immutable field; a patch for the rest."""

    immutable: tuple[str, ...]
    patch: Mapping[str, Any]
    mask: tuple[str, ...]


def compare(spec: NodeSpec, node: Node) -> Differences:
    """Compare a TPU with its spec; fields that the spec leaves open never differ."""
    patch: dict[str, Any] = {}
    mask: list[str] = []

    def change(field: str, value: object) -> None:
        patch[field] = value
        mask.append(field)

    if spec.labels is not None and dict(spec.labels) != dict(node.labels):
        change("labels", dict(spec.labels))
    if spec.tags is not None and sorted(spec.tags) != sorted(node.tags):
        change("tags", list(spec.tags))
    if spec.description is not None and spec.description != node.description:
        change("description", spec.description)
    metadata = _merged_metadata(node.metadata, spec.metadata or {})
    if metadata != dict(node.metadata):
        change("metadata", metadata)
    if spec.external_ip is not None and spec.external_ip != node.external_ips:
        patch["networkConfig"] = {"enableExternalIps": spec.external_ip}
        mask.append("network_config.enable_external_ips")
    return Differences(tuple(_immutable(spec, node)), patch, tuple(mask))


def _immutable(spec: NodeSpec, node: Node) -> Iterator[str]:
    pairs: list[tuple[str, object, object]] = [
        ("accelerator_type", node.accelerator_type, spec.kind or node.accelerator_type),
        ("runtime_version", node.runtime_version, spec.runtime_version),
        *((flag, getattr(node, flag), getattr(spec, flag)) for flag in SCHEDULING_FLAGS),
    ]
    if spec.topology and node.topology:
        pairs.append(("topology", node.topology, spec.topology))
    for key in ("service_account", "secure_boot"):
        if getattr(spec, key) is not None:
            pairs.append((key, getattr(node, key), getattr(spec, key)))
    if spec.scopes is not None:
        pairs.append(("scopes", sorted(node.scopes), sorted(spec.scopes)))
    if spec.data_disks is not None:
        observed = sorted(map(str, node.data_disks))
        pairs.append(("data_disks", observed, sorted(map(str, spec.data_disks))))
    for key in _PATHS:
        desired, observed_path = getattr(spec, key), getattr(node, key)
        if desired is not None and last_part(desired) != last_part(observed_path):
            pairs.append((key, observed_path, desired))
    for key, observed_value, desired_value in pairs:
        if observed_value != desired_value:
            yield f"{key} is {_shown(observed_value)}, expected {_shown(desired_value)}"


def facts_of(node: Node) -> dict[str, Any]:
    """Return what a diff shows of a TPU; metadata by digest, because it may hold secrets."""
    return {
        "name": node.name,
        "zone": node.zone,
        "accelerator_type": node.accelerator_type,
        "runtime_version": node.runtime_version,
        "spot": node.spot,
        "preemptible": node.preemptible,
        "reserved": node.reserved,
        "network": node.network,
        "subnetwork": node.subnetwork,
        "external_ip": node.external_ips,
        "service_account": node.service_account,
        "secure_boot": node.secure_boot,
        "data_disks": [str(disk) for disk in node.data_disks],
        "description": node.description,
        "labels": dict(node.labels),
        "tags": list(node.tags),
        "metadata": _digests(node.metadata),
    }


def status_of(node: Node) -> dict[str, Any]:
    """Return facts_of with what the cloud sets: id, state, health, the workers' addresses."""
    workers = [
        {"internal_ip": end.internal_ip, "external_ip": end.external_ip} for end in node.endpoints
    ]
    return facts_of(node) | {
        "id": node.id,
        "state": node.state,
        "health": node.health,
        "workers": workers,
    }


def outcome_of(
    spec: NodeSpec,
    before: Node | None,
    changed: bool,
    after: Node | None = None,
    *,
    created: bool = False,
) -> NodeOutcome:
    """Return the outcome of a change, by the TPU before it and its spec."""
    observed = facts_of(before) if before else {}
    planned = dict(observed)
    if changed:
        planned |= {"name": spec.name, "zone": spec.zone, "accelerator_type": spec.kind}
        for key in _PLAIN_FACTS:
            if getattr(spec, key) is not None:
                planned[key] = getattr(spec, key)
        if spec.data_disks is not None:
            planned["data_disks"] = [str(disk) for disk in spec.data_disks]
        if spec.tags is not None:
            planned["tags"] = list(spec.tags)
        if spec.metadata is not None:
            existing = before.metadata if before and not created else {}
            planned["metadata"] = _digests(_merged_metadata(existing, spec.metadata))
    verb = "is unchanged"
    if created:
        verb = "is recreated" if before else "is created"
    elif changed:
        verb = "is changed"
    return NodeOutcome(changed, f"TPU {spec.where} {verb}", observed, planned, after or before)


def ensure_present(
    api: TpuApi,
    spec: NodeSpec,
    *,
    timeout: float,
    check: bool = False,
    recreate: bool = False,
    replace_dead: bool = False,
    agreed: Collection[str] | None = None,
    progress: Progress = lambda _text: None,
    check_owner: OwnerCheck = lambda _node: None,
) -> NodeOutcome:
    """Create or change a TPU until it is READY and as its spec says.

    Args:
        api: the client.
        spec: the desired state.
        timeout: for everything, in seconds.
        check: change nothing; return what would change.
        recreate: delete and create again a TPU that differs in an immutable field.
        replace_dead: delete and create again a TPU that was preempted.
        agreed: the living TPUs that may be deleted, by Node.key; None: any.
        progress: receives each state that it waits in.
        check_owner: called with an existing TPU before it is changed or deleted.

    Raises CloudError; Different for an immutable difference without ``recreate``.
    """
    spec.check()
    deadline = api.polling.deadline_in(timeout)
    node = read_node(api, spec.zone, spec.name)

    def create() -> NodeOutcome:
        return _replace(api, spec, node, deadline, check, progress, check_owner)

    if node is None or node.is_being_deleted:
        return create()
    check_owner(node)
    if node.is_lost:
        if not (replace_dead or recreate):
            raise errors.Different(
                f"TPU {node.where} is {node.state} and can't start again. Delete it: "
                f"ansible-playbook playbooks/delete.yml -e tpu={node.name} -e zone={node.zone}, "
                "or set replace_dead: true"
            )
        return create()
    differences = compare(spec, node)
    if differences.immutable:
        if not recreate:
            raise _different(node, differences)
        if agreed is not None and node.key not in agreed:
            raise _not_agreed(node)
        return create()
    if node.state in ("STOPPED", "STOPPING"):
        raise errors.Different(
            f"TPU {node.where} is {node.state}. Start it with tpufleet.core.tpu_node and "
            f"state: started, or: gcloud compute tpus tpu-vm start {node.name} --zone={node.zone}"
        )
    if check:
        return outcome_of(spec, node, bool(differences.mask))
    node = _wait_ready(api, spec, deadline, progress)
    if not differences.mask:
        return outcome_of(spec, node, False)
    operation = api.patch_node(node.zone, node.name, differences.patch, differences.mask)
    api.wait(operation, f"change TPU {node.where}", deadline)
    return outcome_of(spec, node, True, _wait_ready(api, spec, deadline, progress))


def ensure_absent(
    api: TpuApi,
    zone: str,
    name: str,
    *,
    timeout: float,
    check: bool = False,
    agreed: Collection[str] | None = None,
    progress: Progress = lambda _text: None,
) -> NodeOutcome:
    """Delete a TPU: the one that exists now, never a later one of its name.

    ``agreed`` as for ensure_present; raises Different for a TPU that is not among them.
    """
    node = read_node(api, zone, name)
    if node is None:
        return NodeOutcome(False, f"TPU {name} ({zone}) does not exist", {}, {})
    if agreed is not None and node.key not in agreed:
        raise _not_agreed(node)
    if not check:
        _delete(api, node, api.polling.deadline_in(timeout), progress)
    msg = f"TPU {node.where} {'would be' if check else 'is'} deleted"
    return NodeOutcome(True, msg, facts_of(node), {}, node)


def ensure_power(
    api: TpuApi,
    zone: str,
    name: str,
    *,
    started: bool,
    timeout: float,
    check: bool = False,
    progress: Progress = lambda _text: None,
) -> NodeOutcome:
    """Start an existing TPU (READY), or stop it (STOPPED, its disks stay)."""
    goal, verb = ("READY", "start") if started else ("STOPPED", "stop")
    what = f"{verb} TPU {name} ({zone})"
    deadline = api.polling.deadline_in(timeout)
    node = read_node(api, zone, name)
    if node is None:
        raise errors.NotFound(f"can't {what}: it does not exist. Create it with state: present")
    before = {"name": name, "zone": zone, "state": node.state}
    after = before | {"state": goal}
    if node.state == goal or check:
        return NodeOutcome(node.state != goal, f"{what}: it is {node.state}", before, after, node)
    tried, requested = 0, False
    while node.state != goal:
        if node.is_lost:
            raise errors.Different(f"can't {what}: it is {node.state} and must be recreated")
        if node.state == ("STOPPED" if started else "READY"):
            requested = True
            with suppress(errors.NoAnswer):  # it may have taken effect: the next read shows it
                operation = api.power_node(zone, name, verb)
                api.wait(operation, what, deadline, lambda: progress(verb.upper()))
        progress(node.state)
        node = read_node(api, zone, name)
        if node is None:
            raise errors.OperationFailed(f"can't {what}: somebody deleted it")
        if node.state != goal:
            api.polling.pause(what, tried, deadline)
            tried += 1
    done = "is started" if started else "is stopped"
    return NodeOutcome(requested, f"TPU {node.where} {done}", before, after, node)


def read_node(api: TpuApi, zone: str, name: str) -> Node | None:
    """Return a TPU; None if it does not exist."""
    found = api.get_node(zone, name)
    return None if found is None else parse_node(found)


def _replace(
    api: TpuApi,
    spec: NodeSpec,
    old: Node | None,
    deadline: float,
    check: bool,
    progress: Progress,
    check_owner: OwnerCheck,
) -> NodeOutcome:
    node = None
    if not check:
        if old:
            _delete(api, old, deadline, progress)
        node = _create(api, spec, deadline, progress, check_owner)
    was_alive = old is not None and not old.is_lost and not old.is_being_deleted
    outcome = outcome_of(spec, old, True, node, created=True)
    return replace(outcome, replaced=old if was_alive else None)


def _create(
    api: TpuApi, spec: NodeSpec, deadline: float, progress: Progress, check_owner: OwnerCheck
) -> Node:
    what = f"create TPU {spec.where}"
    if spec.disks_to_create:
        ensure_disks(api.compute, spec, deadline=deadline, progress=progress)
    try:
        operation = api.create_node(spec.zone, spec.name, spec.body(api.settings.project))
    except (errors.AlreadyExists, errors.NoAnswer):
        # An answer was lost, or another controller was quicker: reading the TPU decides.
        node = read_node(api, spec.zone, spec.name)
        if node is None:
            raise
        check_owner(node)
        differences = compare(spec, node)
        if differences.immutable:
            raise _different(node, differences) from None
        return _wait_ready(api, spec, deadline, progress)
    except (errors.InvalidRequest, errors.NotFound, errors.Forbidden) as refused:
        raise explain_refusal(api, refused, spec) from None
    progress("CREATING")
    api.wait(operation, what, deadline, lambda: progress("CREATING"))
    return _wait_ready(api, spec, deadline, progress)


def _wait_ready(api: TpuApi, spec: NodeSpec, deadline: float, progress: Progress) -> Node:
    what = f"wait for TPU {spec.where} to be READY"
    tried = 0
    while True:
        node = read_node(api, spec.zone, spec.name)
        if node is None:
            raise api.creation_error(spec.zone, spec.name) or errors.OperationFailed(
                f"can't {what}: it existed and is gone. Somebody deleted it, or its creation failed"
            )
        if node.state == "READY" and node.endpoints:
            return node
        if node.is_lost:
            raise errors.CapacityError(f"can't {what}: it is {node.state} already; run this again")
        progress(node.state)
        try:
            api.polling.pause(what, tried, deadline)
        except errors.DeadlineExceeded as late:
            raise errors.DeadlineExceeded(
                f"TPU {spec.where} is still {node.state}: {late}"
            ) from None
        tried += 1


def _delete(api: TpuApi, node: Node, deadline: float, progress: Progress) -> None:
    what = f"delete TPU {node.where}"

    def look() -> Found | None:
        found = read_node(api, node.zone, node.name)
        return found and Found(found.id, found.state, found.is_being_deleted)

    delete_exactly(
        what,
        node.id,
        look=look,
        delete=lambda: api.delete_node(node.zone, node.name),
        wait=lambda operation: api.wait(operation, what, deadline, lambda: progress("DELETING")),
        pause=lambda tried: api.polling.pause(what, tried, deadline),
        progress=progress,
    )


def _different(node: Node, differences: Differences) -> errors.Different:
    return errors.Different(
        f"TPU {node.where} exists, but {'; '.join(differences.immutable)}, which can't be changed. "
        "Recreate it: ansible-playbook playbooks/create.yml -e recreate=true (recreate: true)"
    )


def _not_agreed(node: Node) -> errors.Different:
    return errors.Different(
        f"TPU {node.where} was created after you were asked whether to delete it, so it stays. To "
        "delete it, too, run this again"
    )


def _merged_metadata(existing: Mapping[str, str], desired: Mapping[str, str]) -> dict[str, str]:
    """Add entries. To ``ssh-keys`` add lines, or one controller would lock out the others."""
    merged = {**existing, **desired}
    if KEYS_ENTRY in existing and KEYS_ENTRY in desired:
        lines = existing[KEYS_ENTRY].splitlines()
        added = [line for line in desired[KEYS_ENTRY].splitlines() if line not in lines]
        merged[KEYS_ENTRY] = "\n".join([*lines, *added]) if added else existing[KEYS_ENTRY]
    return merged


def _digests(metadata: Mapping[str, str]) -> dict[str, str]:
    return {
        key: f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()[:12]}"
        for key, value in sorted(metadata.items())
    }


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value) or "nothing"
