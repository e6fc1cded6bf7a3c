"""Parser of the fleet file (``tpu_fleet``), the desired TPUs, with strict validation."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils.cloud.errors import NotConfigured
from ...module_utils.cloud.names import Disk
from ...module_utils.cloud.node_spec import NodeSpec, parse_duration

_STRING_KEYS = (
    *("accelerator_type", "runtime_version", "network", "subnetwork", "description"),
    "service_account",
)
_BOOLEAN_KEYS = ("spot", "preemptible", "reserved", "external_ip", "secure_boot")
_MAPPING_KEYS = ("labels", "metadata")
_LIST_KEYS = ("tags", "scopes")
_OTHER_KEYS = ("name", "count", "zone", "zones", "data_disks", "queued", "idle_delete_after")
_KEYS = (*_OTHER_KEYS, *_LIST_KEYS, *_STRING_KEYS, *_BOOLEAN_KEYS, *_MAPPING_KEYS)


@dataclass(frozen=True)
class Queued:
    """Options of a TPU's queued resource: how long it may wait, in seconds (None: no limit)."""

    valid_for: int | None = None


@dataclass(frozen=True)
class FleetEntry:
    """One desired TPU.

    Args:
        name: the TPU's name.
        specs: the spec of the TPU for each of its zones, in the order to try them.
        queued: options of the queued resource that creates the TPU; None: create it directly.
        idle_delete_after: seconds without a run after which the watch deletes the TPU; None: never.
    """

    name: str
    specs: tuple[NodeSpec, ...]
    queued: Queued | None = None
    idle_delete_after: int | None = None

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones in which the TPU may be created, in the order to try them."""
        return tuple(spec.zone for spec in self.specs)

    def spec_in(self, zone: str) -> NodeSpec:
        """Return the spec for a zone; for a zone that is not listed, the first spec."""
        return next((spec for spec in self.specs if spec.zone == zone), self.specs[0])


def parse_fleet(entries: object) -> tuple[FleetEntry, ...]:
    """Parse ``tpu_fleet``. Raises NotConfigured with the invalid entry and key."""
    try:
        return _parse(entries)
    except NotConfigured as error:
        raise NotConfigured(
            f"{error}. Fix fleet.yml, then run: ansible-playbook playbooks/plan.yml"
        ) from None


def _parse(entries: object) -> tuple[FleetEntry, ...]:
    if not isinstance(entries, list):
        raise NotConfigured("tpu_fleet is not a list: see inventory/*/group_vars/all/fleet.yml")
    tpus: dict[str, FleetEntry] = {}
    for number, entry in enumerate(entries, 1):
        for tpu in _parse_entry(entry, number):
            if tpu.name in tpus:
                raise NotConfigured(f"tpu_fleet: two TPUs have the name {tpu.name}")
            tpus[tpu.name] = tpu
    _check_shared_disks(tpus.values())
    return tuple(tpus.values())


def _check_shared_disks(tpus: Iterable[FleetEntry]) -> None:
    """Raise NotConfigured if several TPUs share a disk and at least one may write to it."""
    users: dict[tuple[str, str], list[tuple[str, bool]]] = defaultdict(list)
    for tpu in tpus:
        for spec in tpu.specs:
            for disk in spec.data_disks or ():
                users[spec.zone, disk.source].append((tpu.name, disk.writable))
    for (_, disk), tpu_modes in users.items():
        if len(tpu_modes) > 1 and any(is_writer for _, is_writer in tpu_modes):
            names = ", ".join(name for name, _ in tpu_modes)
            raise NotConfigured(
                f"tpu_fleet: {names} can share the disk {disk} only for reading: set mode: "
                "read-only, or give each its own disk"
            )


def select(tpus: tuple[FleetEntry, ...], name: str) -> tuple[FleetEntry, ...]:
    """Return the TPU of this name, or all TPUs if ``name`` is empty.

    Raises NotConfigured if there is no TPU of this name.
    """
    if not name:
        return tpus
    selected = tuple(tpu for tpu in tpus if tpu.name == name)
    if not selected:
        names = ", ".join(tpu.name for tpu in tpus) or "none"
        raise NotConfigured(
            f"tpu_fleet has no TPU {name!r:.80}; it has {names}. Name one of them: -e tpu=NAME"
        )
    return selected


def in_zone(tpus: tuple[FleetEntry, ...], name: str, zone: str) -> tuple[FleetEntry, ...]:
    """Return ``tpus``, but the entry with this name has only its spec for ``zone``.

    Raises NotConfigured if the entry of ``name`` does not list the zone.
    """
    return tuple(_in_zone(tpu, zone) if tpu.name == name else tpu for tpu in tpus)


def _in_zone(tpu: FleetEntry, zone: str) -> FleetEntry:
    if zone not in tpu.zones:
        raise NotConfigured(
            f"tpu_fleet, {tpu.name}: zone {zone} is not in its zones ({', '.join(tpu.zones)}). "
            f"Choose one of them, for example: -e tpu={tpu.name}_{tpu.zones[0]}"
        )
    return replace(tpu, specs=(tpu.spec_in(zone),))


def name_and_zone(text: str) -> tuple[str, str]:
    """Split ``demo_us-central2-b`` into name and zone; for ``demo`` the zone is empty.

    The inventory uses this form where several zones have a TPU of the same name. A TPU's name
    never contains a ``_``.
    """
    name, _, zone = text.partition("_")
    return name, zone


def _parse_entry(entry: object, number: int) -> list[FleetEntry]:
    if not isinstance(entry, Mapping):
        raise NotConfigured(
            f"tpu_fleet, entry {number}: expected a mapping with the key name, not "
            f"{str(entry)!r:.60}"
        )
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise NotConfigured(f"tpu_fleet, entry {number}: name is missing")
    context = f"tpu_fleet, {name}"
    for key in entry:
        if key not in _KEYS:
            similar = difflib.get_close_matches(str(key), _KEYS, 1)
            raise NotConfigured(
                f"{context}: unknown key {key!r:.60}"
                f"{f', did you mean {similar[0]}?' if similar else ''}"
            )
    zones = _zones(entry, context)
    values = _values(entry, context)
    queued = _queued(entry, zones, context)
    idle_s = entry.get("idle_delete_after")
    idle_s = None if idle_s is None else parse_duration(idle_s, f"{context}: idle_delete_after")
    count = entry.get("count")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise NotConfigured(f"{context}: count: expected a whole number above 0 ({count!r:.40})")
    names = [str(name)] if count is None else [f"{name}-{index}" for index in range(count)]
    tpus = [
        FleetEntry(
            tpu_name,
            tuple(NodeSpec(name=tpu_name, zone=zone, **values) for zone in zones),
            queued,
            idle_s,
        )
        for tpu_name in names
    ]
    for tpu in tpus:
        for spec in tpu.specs:
            spec.check()
    return tpus


def _queued(entry: Mapping[str, Any], zones: list[str], context: str) -> Queued | None:
    options = entry.get("queued")
    if options is None:
        return None
    if not isinstance(options, Mapping) or set(options) - {"valid_for"}:
        raise NotConfigured(f"{context}: queued: expected e.g. {{valid_for: 6h}} ({options!r:.60})")
    if len(zones) > 1:
        raise NotConfigured(
            f"{context}: queued needs one zone, because each zone's queue would create a TPU. Set "
            "zone in place of zones"
        )
    for flag in ("preemptible", "reserved"):
        if entry.get(flag):
            raise NotConfigured(f"{context}: queued can't be combined with {flag}")
    valid_for = options.get("valid_for")
    return Queued(
        None if valid_for is None else parse_duration(valid_for, f"{context}: queued: valid_for")
    )


def _zones(entry: Mapping[str, Any], context: str) -> list[str]:
    if ("zone" in entry) == ("zones" in entry):
        raise NotConfigured(f"{context}: set either zone or zones")
    zones = [entry["zone"]] if "zone" in entry else entry["zones"]
    if not isinstance(zones, list) or not zones or not all(isinstance(zone, str) for zone in zones):
        raise NotConfigured(
            f"{context}: zones: expected a list such as [us-central2-b] ({zones!r:.60})"
        )
    return list(dict.fromkeys(str(zone) for zone in zones))


def _values(entry: Mapping[str, Any], context: str) -> dict[str, Any]:
    values: dict[str, Any] = {"accelerator_type": "", "runtime_version": ""}
    for key in (*_STRING_KEYS, *_BOOLEAN_KEYS):
        expected_type = str if key in _STRING_KEYS else bool
        if entry.get(key) is None:
            continue
        if not isinstance(entry[key], expected_type):
            expected = "a string" if expected_type is str else "true or false"
            raise NotConfigured(f"{context}: {key}: expected {expected} ({entry[key]!r:.60})")
        values[key] = expected_type(entry[key])
    for key in _MAPPING_KEYS:
        pairs = entry.get(key)
        if pairs is None:
            continue
        if not isinstance(pairs, Mapping) or not all(
            isinstance(value, str) for value in pairs.values()
        ):
            raise NotConfigured(
                f"{context}: {key}: expected a mapping with strings as values; "
                "quote numbers, true and false"
            )
        values[key] = {str(name): str(value) for name, value in pairs.items()}
    for key in _LIST_KEYS:
        items = entry.get(key)
        if items is None:
            continue
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise NotConfigured(f"{context}: {key}: expected a list of strings ({items!r:.60})")
        values[key] = tuple(str(item) for item in items)
    if entry.get("data_disks") is not None:
        values["data_disks"] = _disks(entry["data_disks"], context)
    return values


def _disks(disks: object, context: str) -> tuple[Disk, ...]:
    modes = ("read-only", "read-write")
    parsed = []
    for disk in disks if isinstance(disks, list) else [disks]:
        options = {"name": disk} if isinstance(disk, str) else disk
        if (
            not isinstance(options, Mapping)
            or not isinstance(options.get("name"), str)
            or options.get("mode", modes[0]) not in modes
            or set(options) - {"name", "mode", "size_gb", "type"}
            or not isinstance(options.get("size_gb", 0), int)
            or not isinstance(options.get("type", ""), str)
        ):
            raise NotConfigured(
                f"{context}: data_disks: expected a disk's name, or a mapping with name and, if "
                f"needed, mode (read-only or read-write), size_gb and type ({disk!r:.60})"
            )
        size, kind = int(options.get("size_gb", 0)), str(options.get("type", ""))
        parsed.append(Disk(str(options["name"]), options.get("mode") == "read-write", size, kind))
    return tuple(parsed)
