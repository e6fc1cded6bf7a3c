"""One TPU from what is to what is wanted: read, compare, change what differs, wait, look again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import tpu_errors as errors
from .tpu_api import TpuApi, check_zone
from .tpu_nodes import DEAD_STATES, Node, parse_node

Progress = Callable[[str], None]

#: The metadata entry that lets people in: a line ``user:public key`` for each.
KEYS_ENTRY = "ssh-keys"

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


class Different(errors.TpuApiError):
    """The TPU exists, but not as wanted, and this can't be changed on a TPU that exists."""

    reason = "different"


@dataclass(frozen=True)
class Wanted:
    """A TPU as it should be. None: as the API likes, and whatever it is later is fine."""

    name: str
    zone: str
    accelerator_type: str
    runtime_version: str
    spot: bool = False
    preemptible: bool = False
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool | None = None
    description: str | None = None
    labels: Mapping[str, str] | None = None
    tags: tuple[str, ...] | None = None
    metadata: Mapping[str, str] | None = None  # a node may have more entries than these

    @property
    def where(self) -> str:
        """Name this TPU for people, as in ``demo (us-central2-b)``."""
        return f"{self.name} ({self.zone})"

    def check(self) -> None:
        """Refuse what can't be a TPU's before asking anybody. Raises NotConfigured."""
        if not _NAME.fullmatch(self.name):
            raise errors.NotConfigured(
                f"{self.name!r} is no name for a TPU: wanted are up to 63 of a-z, 0-9 and -, "
                "a letter first"
            )
        check_zone(self.zone)
        if self.zone == "-":
            raise errors.NotConfigured(f"TPU {self.name} needs a zone of its own, not '-'")
        for key in ("accelerator_type", "runtime_version"):
            if not getattr(self, key):
                raise errors.NotConfigured(f"TPU {self.where} needs {key}")
        if self.spot and self.preemptible:
            raise errors.NotConfigured(
                f"TPU {self.where} is to be spot and preemptible: choose one, spot is the newer"
            )

    def body(self) -> dict[str, Any]:
        """Give the node as the API takes it for a creation."""
        network = {
            "network": self.network,
            "subnetwork": self.subnetwork,
            "enableExternalIps": self.external_ip,
        }
        scheduling = {"spot": self.spot or None, "preemptible": self.preemptible or None}
        body = {
            "acceleratorType": self.accelerator_type,
            "runtimeVersion": self.runtime_version,
            "description": self.description,
            "networkConfig": _without_none(network) or None,
            "schedulingConfig": _without_none(scheduling) or None,
            "labels": dict(self.labels) if self.labels else None,
            "tags": list(self.tags) if self.tags else None,
            "metadata": dict(self.metadata) if self.metadata else None,
        }
        return _without_none(body)


@dataclass(frozen=True)
class Outcome:
    """What happened, or would have: ``before`` and ``after`` are for the diff.

    ``replaced`` was alive, and was deleted to make it anew.
    """

    changed: bool
    msg: str
    node: Node | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    replaced: Node | None = None


@dataclass(frozen=True)
class _Differences:
    immutable: tuple[str, ...]
    patch: Mapping[str, Any]
    mask: tuple[str, ...]


def facts_of(node: Node) -> dict[str, Any]:
    """Give what people compare of a node; metadata by digest, for start scripts hold secrets."""
    return {
        "name": node.name,
        "zone": node.zone,
        "accelerator_type": node.accelerator_type,
        "runtime_version": node.runtime_version,
        "spot": node.spot,
        "preemptible": node.preemptible,
        "network": node.network,
        "subnetwork": node.subnetwork,
        "external_ip": node.external_ips,
        "description": node.description,
        "labels": dict(node.labels),
        "tags": list(node.tags),
        "metadata": {key: _digest(value) for key, value in sorted(node.metadata.items())},
    }


def status_of(node: Node) -> dict[str, Any]:
    """Give facts_of and what the cloud decides: id, state, health, the workers' addresses."""
    workers = [
        {"internal_ip": end.internal_ip, "external_ip": end.external_ip} for end in node.endpoints
    ]
    return facts_of(node) | {
        "id": node.id,
        "state": node.state,
        "health": node.health,
        "workers": workers,
    }


def ensure_present(
    api: TpuApi,
    wanted: Wanted,
    *,
    timeout: float,
    check: bool = False,
    recreate: bool = False,
    replace_dead: bool = False,
    progress: Progress = lambda _text: None,
) -> Outcome:
    """Make the TPU be there and READY, as wanted.

    ``recreate`` deletes one that differs in what can't be changed, ``replace_dead`` one that was
    preempted. ``timeout`` in seconds for all of it. Raises TpuApiError; Different without
    ``recreate``.
    """
    wanted.check()
    deadline = api.deadline_in(timeout)
    node = _read(api, wanted.zone, wanted.name)
    if node is None or node.state == "DELETING":
        return _make(api, wanted, node, deadline, check, progress)
    if node.state in DEAD_STATES:
        if not (replace_dead or recreate):
            raise Different(
                f"TPU {node.where} is {node.state} and can't start again: delete it "
                f"(playbooks/delete.yml -e tpu={node.name}), or say replace_dead: true"
            )
        return _make(api, wanted, node, deadline, check, progress)
    differences = _compare(wanted, node)
    if differences.immutable:
        if not recreate:
            raise _different(node, differences)
        return _make(api, wanted, node, deadline, check, progress)
    if node.state in ("STOPPED", "STOPPING"):
        raise Different(
            f"TPU {node.where} is {node.state}: start it with "
            f"`gcloud compute tpus tpu-vm start {node.name} --zone={node.zone}`"
        )
    if check:
        return _outcome(wanted, node, bool(differences.mask))
    node = _wait_ready(api, wanted, deadline, progress)
    if differences.mask:
        what = f"change TPU {node.where}"
        api.wait(
            api.patch_node(node.zone, node.name, differences.patch, differences.mask),
            what,
            deadline,
        )
        changed = _wait_ready(api, wanted, deadline, progress)
        return _outcome(wanted, node, True, changed)
    return _outcome(wanted, node, False)


def ensure_absent(
    api: TpuApi,
    zone: str,
    name: str,
    *,
    timeout: float,
    check: bool = False,
    progress: Progress = lambda _text: None,
) -> Outcome:
    """Make the TPU be gone; the one that is there now, not one of its name that comes later."""
    node = _read(api, zone, name)
    if node is None:
        return Outcome(False, f"TPU {name} ({zone}) is not there", None, {}, {})
    if not check:
        _remove(api, node, api.deadline_in(timeout), progress)
    msg = f"TPU {node.where} {'would be' if check else 'is'} deleted"
    return Outcome(True, msg, node, facts_of(node), {})


def _read(api: TpuApi, zone: str, name: str) -> Node | None:
    found = api.get_node(zone, name)
    return None if found is None else parse_node(found)


def _make(
    api: TpuApi,
    wanted: Wanted,
    instead_of: Node | None,
    deadline: float,
    check: bool,
    progress: Progress,
) -> Outcome:
    alive = instead_of and instead_of.state not in (*DEAD_STATES, "DELETING")
    node = None
    if not check:
        if instead_of:
            _remove(api, instead_of, deadline, progress)
        node = _create(api, wanted, deadline, progress)
    outcome = _outcome(wanted, instead_of, True, node, created=True)
    return replace(outcome, replaced=instead_of if alive else None)


def _create(api: TpuApi, wanted: Wanted, deadline: float, progress: Progress) -> Node:
    what = f"create TPU {wanted.where}"
    try:
        operation = api.create_node(wanted.zone, wanted.name, wanted.body())
    except (errors.AlreadyExists, errors.NoAnswer):
        # An answer was lost on the way, or another controller was quicker: what is there tells.
        if api.get_node(wanted.zone, wanted.name) is None:
            raise
        node = _wait_ready(api, wanted, deadline, progress)
        differences = _compare(wanted, node)
        if differences.immutable:
            raise _different(node, differences) from None
        return node
    progress("CREATING")
    api.wait(operation, what, deadline, lambda: progress("CREATING"))
    return _wait_ready(api, wanted, deadline, progress)


def _wait_ready(api: TpuApi, wanted: Wanted, deadline: float, progress: Progress) -> Node:
    what = f"have TPU {wanted.where} READY"
    tried = 0
    while True:
        node = _read(api, wanted.zone, wanted.name)
        if node is None:
            raise api.creation_error(wanted.zone, wanted.name) or errors.OperationFailed(
                f"can't {what}: it was there and is gone; somebody deleted it, or it failed"
            )
        if node.state == "READY" and node.endpoints:
            return node
        if node.state in DEAD_STATES:
            raise errors.CapacityError(f"can't {what}: it is {node.state} already; run this again")
        progress(node.state)
        try:
            api.pause(what, tried, deadline)
        except errors.DeadlineExceeded as late:
            raise errors.DeadlineExceeded(
                f"TPU {wanted.where} is still {node.state}: {late}"
            ) from None
        tried += 1


def _remove(api: TpuApi, seen: Node, deadline: float, progress: Progress) -> None:
    what = f"delete TPU {seen.where}"
    tried = 0
    while True:
        node = _read(api, seen.zone, seen.name)
        if node is None or node.key != seen.key:
            return
        if node.state != "DELETING":
            try:
                operation = api.delete_node(node.zone, node.name)
            except errors.NoAnswer:
                operation = None  # it may have worked: the next look tells
            if operation:
                api.wait(operation, what, deadline, lambda: progress("DELETING"))
                continue
        progress("DELETING")
        api.pause(what, tried, deadline)
        tried += 1


def _compare(wanted: Wanted, node: Node) -> _Differences:
    immutable = []
    for key in ("accelerator_type", "runtime_version", "spot", "preemptible"):
        want, have = getattr(wanted, key), getattr(node, key)
        if want != have:
            immutable.append(f"{key} is {_shown(have)}, wanted {_shown(want)}")
    for key in ("network", "subnetwork"):
        want, have = getattr(wanted, key), getattr(node, key)
        if want is not None and want.rsplit("/", 1)[-1] != have.rsplit("/", 1)[-1]:
            immutable.append(f"{key} is {_shown(have)}, wanted {_shown(want)}")
    patch: dict[str, Any] = {}
    mask: list[str] = []
    if wanted.labels is not None and dict(wanted.labels) != dict(node.labels):
        patch["labels"], _ = dict(wanted.labels), mask.append("labels")
    if wanted.tags is not None and sorted(wanted.tags) != sorted(node.tags):
        patch["tags"], _ = list(wanted.tags), mask.append("tags")
    if wanted.description is not None and wanted.description != node.description:
        patch["description"], _ = wanted.description, mask.append("description")
    metadata = _merged_metadata(node.metadata, wanted.metadata or {})
    if metadata != dict(node.metadata):
        patch["metadata"], _ = metadata, mask.append("metadata")
    if wanted.external_ip is not None and wanted.external_ip != node.external_ips:
        patch["networkConfig"] = {"enableExternalIps": wanted.external_ip}
        mask.append("network_config.enable_external_ips")
    return _Differences(tuple(immutable), patch, tuple(mask))


def _different(node: Node, differences: _Differences) -> Different:
    return Different(
        f"TPU {node.where} exists, but {'; '.join(differences.immutable)}: that can't be changed; "
        "say recreate: true to delete it and make it anew"
    )


def _outcome(
    wanted: Wanted,
    before: Node | None,
    changed: bool,
    after: Node | None = None,
    *,
    created: bool = False,
) -> Outcome:
    seen = facts_of(before) if before else {}
    planned = dict(seen)
    if changed:
        planned |= {"name": wanted.name, "zone": wanted.zone}
        for key in (
            "accelerator_type",
            "runtime_version",
            "spot",
            "preemptible",
            "network",
            "subnetwork",
            "external_ip",
            "description",
            "labels",
        ):
            if getattr(wanted, key) is not None:
                planned[key] = getattr(wanted, key)
        if wanted.tags is not None:
            planned["tags"] = list(wanted.tags)
        if wanted.metadata is not None:
            had = before.metadata if before and not created else {}
            metadata = _merged_metadata(had, wanted.metadata)
            planned["metadata"] = {key: _digest(value) for key, value in sorted(metadata.items())}
    verb = (
        ("is made anew" if before else "is made")
        if created
        else "is changed"
        if changed
        else "is as wanted"
    )
    return Outcome(changed, f"TPU {wanted.where} {verb}", after or before, seen, planned)


def _merged_metadata(have: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Add entries; to ``ssh-keys`` add lines, or one controller would lock out the others."""
    merged = {**have, **wanted}
    if KEYS_ENTRY in have and KEYS_ENTRY in wanted:
        lines = [*have[KEYS_ENTRY].splitlines(), *wanted[KEYS_ENTRY].splitlines()]
        added = set(wanted[KEYS_ENTRY].splitlines()) - set(have[KEYS_ENTRY].splitlines())
        merged[KEYS_ENTRY] = "\n".join(dict.fromkeys(lines)) if added else have[KEYS_ENTRY]
    return merged


def _digest(value: str) -> str:
    return f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()[:12]}"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "nothing"


def _without_none(pairs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pairs.items() if value is not None}
