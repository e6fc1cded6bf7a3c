"""The fleet file: what a person writes, read strictly into the TPUs that are wanted. Pure."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...module_utils.cloud.tpu_errors import NotConfigured
from ...module_utils.cloud.tpu_nodes import Disk
from ...module_utils.cloud.tpu_requests import seconds_of
from ...module_utils.cloud.tpu_wanted import Wanted

_TEXTS = (
    *("accelerator_type", "runtime_version", "network", "subnetwork", "description"),
    "service_account",
)
_FLAGS = ("spot", "preemptible", "reserved", "external_ip", "secure_boot")
_PAIRS = ("labels", "metadata")
_LISTS = ("tags", "scopes")
_OTHERS = ("name", "count", "zone", "zones", "data_disks", "queued", "idle_delete_after")
_KEYS = (*_OTHERS, *_LISTS, *_TEXTS, *_FLAGS, *_PAIRS)


@dataclass(frozen=True)
class Queued:
    """How to wait in Google's queue: ``valid_for`` so many seconds; None: as long as it takes."""

    valid_for: int | None = None


@dataclass(frozen=True)
class FleetTpu:
    """One TPU of the fleet: the same in each of the zones, which are tried in this order.

    With ``queued`` it is asked for through Google's queue, in one zone.
    """

    name: str
    choices: tuple[Wanted, ...]
    queued: Queued | None = None
    #: So many seconds without a run, and watch deletes it; None: never.
    idle_delete_after: int | None = None

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that it may be in."""
        return tuple(choice.zone for choice in self.choices)


def expand(entries: object) -> tuple[FleetTpu, ...]:
    """Read ``tpu_fleet``. Raises NotConfigured, one line that names the entry and the key."""
    try:
        return _expand(entries)
    except NotConfigured as error:
        raise NotConfigured(
            f"{error}: mend fleet.yml, then ansible-playbook playbooks/plan.yml"
        ) from None


def _expand(entries: object) -> tuple[FleetTpu, ...]:
    if not isinstance(entries, list):
        raise NotConfigured("tpu_fleet is no list: see inventory/*/group_vars/all/fleet.yml")
    tpus: dict[str, FleetTpu] = {}
    for number, entry in enumerate(entries, 1):
        for tpu in _expand_entry(entry, number):
            if tpu.name in tpus:
                raise NotConfigured(
                    f"tpu_fleet has two TPUs called {tpu.name}: a name must be one TPU's"
                )
            tpus[tpu.name] = tpu
    _refuse_shared_writing(tpus.values())
    return tuple(tpus.values())


def _refuse_shared_writing(tpus: Iterable[FleetTpu]) -> None:
    """Refuse a disk that one TPU of the fleet writes to and another has too."""
    users: dict[tuple[str, str], list[tuple[str, bool]]] = defaultdict(list)
    for tpu in tpus:
        for choice in tpu.choices:
            for disk in choice.data_disks or ():
                users[choice.zone, disk.source].append((tpu.name, disk.writable))
    for (_, disk), who in users.items():
        if len(who) > 1 and any(writes for _, writes in who):
            names = ", ".join(name for name, _ in who)
            raise NotConfigured(
                f"tpu_fleet: {names} can share the disk {disk} only to read: say mode: read-only, "
                "or give each a disk of its own"
            )


def choose(tpus: tuple[FleetTpu, ...], name: str) -> tuple[FleetTpu, ...]:
    """Take the one of this name, all if the name is empty. Raises NotConfigured for none."""
    if not name:
        return tpus
    chosen = tuple(tpu for tpu in tpus if tpu.name == name)
    if not chosen:
        names = ", ".join(tpu.name for tpu in tpus) or "none"
        raise NotConfigured(f"tpu_fleet has no TPU called {name!r}; it has {names}")
    return chosen


def name_and_zone(text: str) -> tuple[str, str]:
    """Read ``demo`` or, where several zones have one, ``demo_us-central2-b``; zone may be empty.

    That is what the inventory's groups are called; no TPU's name has a ``_``.
    """
    name, _, zone = text.partition("_")
    return name, zone


def _expand_entry(entry: object, number: int) -> list[FleetTpu]:
    if not isinstance(entry, Mapping):
        raise NotConfigured(
            f"tpu_fleet, entry {number}: {str(entry)!r:.60} is no mapping with a name"
        )
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise NotConfigured(f"tpu_fleet, entry {number}: it has no name")
    who = f"tpu_fleet, {name}"
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            raise NotConfigured(
                f"{who}: unknown key {key!r}{f', is it {near[0]}?' if near else ''}"
            )
    zones = _zones(entry, who)
    values = _values(entry, who)
    queued = _queued(entry, zones, who)
    idle = entry.get("idle_delete_after")
    idle = None if idle is None else seconds_of(idle, f"{who}: idle_delete_after")
    count = entry.get("count")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise NotConfigured(f"{who}: count is {count!r}, wanted is a number from 1 on")
    names = [str(name)] if count is None else [f"{name}-{index}" for index in range(count)]
    tpus = [
        FleetTpu(
            each, tuple(Wanted(name=each, zone=zone, **values) for zone in zones), queued, idle
        )
        for each in names
    ]
    for tpu in tpus:
        for choice in tpu.choices:
            choice.check()
    return tpus


def _queued(entry: Mapping[str, Any], zones: list[str], who: str) -> Queued | None:
    said = entry.get("queued")
    if said is None:
        return None
    if not isinstance(said, Mapping) or set(said) - {"valid_for"}:
        raise NotConfigured(f"{who}: queued is {said!r:.60}, wanted is such as {{valid_for: 6h}}")
    if len(zones) > 1:
        raise NotConfigured(f"{who}: queued is for one zone, or every zone's queue would make one")
    for flag in ("preemptible", "reserved"):
        if entry.get(flag):
            raise NotConfigured(f"{who}: queued doesn't go with {flag}")
    text = said.get("valid_for")
    return Queued(None if text is None else seconds_of(text, f"{who}: queued: valid_for"))


def _zones(entry: Mapping[str, Any], who: str) -> list[str]:
    if ("zone" in entry) == ("zones" in entry):
        raise NotConfigured(f"{who}: say either zone or zones")
    zones = [entry["zone"]] if "zone" in entry else entry["zones"]
    if not isinstance(zones, list) or not zones or not all(isinstance(zone, str) for zone in zones):
        raise NotConfigured(
            f"{who}: zones is {zones!r:.60}, wanted is a list such as [us-central2-b]"
        )
    return list(dict.fromkeys(str(zone) for zone in zones))


def _values(entry: Mapping[str, Any], who: str) -> dict[str, Any]:
    values: dict[str, Any] = {"accelerator_type": "", "runtime_version": ""}
    for key in (*_TEXTS, *_FLAGS):
        kind = str if key in _TEXTS else bool
        if entry.get(key) is None:
            continue
        if not isinstance(entry[key], kind):
            wanted = "text" if kind is str else "true or false"
            raise NotConfigured(f"{who}: {key} is {entry[key]!r:.60}, wanted is {wanted}")
        values[key] = kind(entry[key])
    for key in _PAIRS:
        pairs = entry.get(key)
        if pairs is None:
            continue
        if not isinstance(pairs, Mapping) or not all(
            isinstance(value, str) for value in pairs.values()
        ):
            raise NotConfigured(
                f"{who}: {key} wants texts by name; put numbers, true and false in quotes"
            )
        values[key] = {str(name): str(value) for name, value in pairs.items()}
    for key in _LISTS:
        items = entry.get(key)
        if items is None:
            continue
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise NotConfigured(f"{who}: {key} is {items!r:.60}, wanted is a list of texts")
        values[key] = tuple(str(item) for item in items)
    if entry.get("data_disks") is not None:
        values["data_disks"] = _disks(entry["data_disks"], who)
    return values


def _disks(disks: object, who: str) -> tuple[Disk, ...]:
    modes = ("read-only", "read-write")
    found = []
    for disk in disks if isinstance(disks, list) else [disks]:
        said = {"name": disk} if isinstance(disk, str) else disk
        if (
            not isinstance(said, Mapping)
            or not isinstance(said.get("name"), str)
            or said.get("mode", modes[0]) not in modes
            or set(said) - {"name", "mode", "size_gb", "type"}
            or not isinstance(said.get("size_gb", 0), int)
            or not isinstance(said.get("type", ""), str)
        ):
            raise NotConfigured(
                f"{who}: data_disks has {disk!r:.60}, wanted is a disk's name, or its name, "
                "mode (read-only, which is the default, or read-write), and size_gb and type if it "
                "is to be made"
            )
        size, kind = int(said.get("size_gb", 0)), str(said.get("type", ""))
        found.append(Disk(str(said["name"]), said.get("mode") == "read-write", size, kind))
    return tuple(found)
