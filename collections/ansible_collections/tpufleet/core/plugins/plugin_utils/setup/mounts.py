"""Validates the inventory's variable ``mounts`` and builds systemd mount units from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ansible.errors import AnsibleFilterError

from ...module_utils.worker.data_disk import BY_ID

_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.-]*){1,16}")
_SYSTEM_DIRECTORIES = frozenset(
    {
        *("bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "sys"),
        *("tmp", "usr", "var"),
    }
)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SHARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
# Valid bucket names: https://cloud.google.com/storage/docs/buckets#naming
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*){0,30}")
_DISK = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
# Names such as /dev/sdb are refused: after a boot, the kernel may give them to another disk.
_DEVICE = re.compile(r"/dev/disk/by-[a-z]+/[A-Za-z0-9_][A-Za-z0-9_.:-]*")
_MODE = re.compile(r"[0-7]{3,4}")
_OPTION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(=[A-Za-z0-9_./:+-]+)?")

# Ignore setuid programs and device files, because the files may come from untrusted users.
_DATA_OPTIONS = ("noatime", "nosuid", "nodev")
_NFS_OPTIONS = ("vers=4.2", "proto=tcp", "hard", "timeo=100", *_DATA_OPTIONS)
# https://cloud.google.com/filestore/docs/mounting-fileshares. All tiers support NFS version 3.
_FILESTORE_OPTIONS = ("vers=3", "proto=tcp", "hard", "timeo=600", "retrans=3", *_DATA_OPTIONS)
# TPU generations that do not support Hyperdisk ML, according to
# https://cloud.google.com/tpu/docs/storage-options
_WITHOUT_HYPERDISK_ML = frozenset(("v2", "v3", "v4"))


class Kind(StrEnum):
    """Kind of an entry of ``mounts``."""

    NFS = "nfs"
    FILESTORE = "filestore"
    GCSFUSE = "gcsfuse"
    DISK = "disk"
    HYPERDISK_ML = "hyperdisk-ml"

    @property
    def is_disk(self) -> bool:
        """Whether entries of this kind are data disks of the TPU."""
        return self in (Kind.DISK, Kind.HYPERDISK_ML)


@dataclass(frozen=True)
class _Key:
    """A key of an entry of ``mounts``: the pattern of its value, and its description for errors."""

    pattern: re.Pattern[str]
    expected: str
    is_required: bool = False


_DISK_KEY = _Key(_DISK, "the name of a data disk of the TPU", is_required=True)
_DEVICE_KEY = _Key(_DEVICE, "a path below /dev/disk/by-id (kernel names such as sdb can change)")
_PATH_KEY = _Key(_PATH, "an absolute path, such as /mnt/data", is_required=True)
_EXPORT_KEY = _Key(_PATH, "the server's absolute path, such as /export/data")
_KEYS: Mapping[Kind, Mapping[str, _Key]] = {
    Kind.NFS: {
        "server": _Key(_HOST, "an inventory host, an address or a DNS name", is_required=True),
        "export": _EXPORT_KEY,
        "mode": _Key(_MODE, "a quoted octal mode, such as '1777'"),
    },
    Kind.FILESTORE: {
        "server": _Key(_HOST, "the instance's address", is_required=True),
        "share": _Key(_SHARE, "the name of the file share, such as vol1", is_required=True),
    },
    Kind.GCSFUSE: {
        "bucket": _Key(_BUCKET, "a bucket's name without gs://", is_required=True),
        "directory": _Key(_FOLDER, "a directory of the bucket without / at its ends"),
    },
    Kind.DISK: {"disk": _DISK_KEY, "device": _DEVICE_KEY},
    Kind.HYPERDISK_ML: {"disk": _DISK_KEY, "device": _DEVICE_KEY},
}
_COMMON_KEYS = frozenset(("kind", "path", "options"))


@dataclass(frozen=True)
class Mount:
    """One validated entry of ``mounts``; ``values`` maps the keys of its kind (_KEYS) to values."""

    kind: Kind
    path: str
    values: Mapping[str, str]
    options: tuple[str, ...] = ()
    read_only: bool = False

    @property
    def unit(self) -> str:
        """The name of the mount's systemd units, without ``.mount`` and ``.automount``."""
        return unit_of(self.path)

    @property
    def device(self) -> str:
        """The path of the disk's device file, for an entry that is a disk."""
        return self.values.get("device") or BY_ID + self.values["disk"]

    @property
    def export(self) -> str:
        """The directory that the NFS server exports; by default the path of the mount."""
        return self.values.get("export") or self.path


def unit_of(path: str) -> str:
    """Return the name of a path's systemd unit, as ``systemd-escape --path`` prints it."""
    return path[1:].replace("-", r"\x2d").replace("/", "-")


def parse_mounts(entries: object) -> tuple[Mount, ...]:
    """Validate ``mounts``. Raises ValueError with the invalid entry and the expected value."""
    if not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
        raise ValueError(f"expected a list of entries ({entries!r:.60})")
    mounts = tuple(_parse(entry, number) for number, entry in enumerate(entries, 1))
    paths = [mount.path for mount in mounts]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"{path} is the path of two entries")
    return mounts


def _parse(entry: object, number: int) -> Mount:
    if not isinstance(entry, Mapping):
        raise ValueError(f"entry {number}: expected a mapping with kind and path ({entry!r:.60})")
    try:
        kind = Kind(entry.get("kind"))
    except ValueError:
        kinds = ", ".join(known_kind.value for known_kind in Kind)
        raise ValueError(
            f"entry {number}: kind: expected one of {kinds} ({entry.get('kind')!r:.60})"
        ) from None
    keys = {"path": _PATH_KEY, **_KEYS[kind]}
    allowed = {*keys, *_COMMON_KEYS, *(() if kind.is_disk else ("read_only",))}
    if unknown := sorted(str(key) for key in entry if key not in allowed):
        raise ValueError(
            f"entry {number}: unknown keys for kind {kind.value}: {', '.join(unknown)} "
            f"(expected {', '.join(sorted(allowed))})"
        )
    values = {key: _text(entry, key, rule, number) for key, rule in keys.items()}
    path = values.pop("path")
    if _is_system_path(path):
        raise ValueError(f"entry {number}: path: {path} belongs to the system; use /mnt/NAME")
    read_only = entry.get("read_only", kind is Kind.GCSFUSE)
    if not isinstance(read_only, bool):
        raise ValueError(f"entry {number}: read_only: expected true or false ({read_only!r:.60})")
    return Mount(kind, path, values, _options(entry.get("options", ()), number), read_only)


def _is_system_path(path: str) -> bool:
    return path == "/home" or path.split("/")[1] in _SYSTEM_DIRECTORIES


def _text(entry: Mapping[str, Any], key: str, rule: _Key, number: int) -> str:
    value = entry.get(key)
    if value is None and not rule.is_required:
        return ""
    if not isinstance(value, str) or not rule.pattern.fullmatch(value):
        raise ValueError(f"entry {number}: {key}: expected {rule.expected} ({value!r:.60})")
    return str(value)


def _options(options: object, number: int) -> tuple[str, ...]:
    if not isinstance(options, Sequence) or not all(
        isinstance(option, str) and _OPTION.fullmatch(option) for option in options
    ):
        raise ValueError(
            f"entry {number}: options: expected a list of mount options such as noatime "
            f"({options!r:.60})"
        )
    return tuple(str(option) for option in options)


def mount_units(
    entries: object,
    host: str,
    hostvars: Mapping[str, Mapping[str, Any]],
    uid: int,
    fleet: Sequence[object] = (),
) -> list[dict[str, Any]]:
    """Return what a worker mounts, one dict per systemd mount unit.

    Args:
        entries: the value of ``mounts`` of this worker.
        host: the worker's name in the inventory. A directory that this worker itself exports is
            mounted by a bind mount, or not at all if it is exported from the path of the mount.
        hostvars: the variables of all hosts, for the addresses of NFS servers.
        uid: the user id and group id that own the files of a mounted bucket.
        fleet: the value of ``tpu_fleet``. A data disk that is not attached to the worker's TPU is
            left out if a TPU of the fleet file has the disk; otherwise it is an error.

    Raises AnsibleFilterError.
    """
    generation = hostvars[host].get("tpu_generation")
    attached = hostvars[host].get("tpu_data_disks") or ()
    units = []
    for mount in _validated_mounts(entries):
        if mount.kind is Kind.NFS and mount.values["server"] == host:
            if mount.export != mount.path:
                units.append(_bind_unit(mount))
            continue
        if mount.kind.is_disk and mount.values["disk"] not in attached:
            _check_listed(mount, fleet)
            continue
        if mount.kind is Kind.HYPERDISK_ML and generation in _WITHOUT_HYPERDISK_ML:
            raise AnsibleFilterError(
                f"mounts: {mount.path}: a TPU {generation} does not support Hyperdisk ML; v5e, "
                "v5p, v6e and later TPUs do. Set kind: disk and a disk of another type"
            )
        units.append(_unit(mount, hostvars, uid))
    return [unit | {"below": _mounts_above(unit, units)} for unit in units]


def _mounts_above(unit: Mapping[str, Any], units: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the mounts at parent directories of the path of ``unit``.

    The description is written into the file of ``unit``, so that a changed parent mount changes
    this file, too. Setup then unmounts ``unit`` first; otherwise, the new parent would hide it.

    Raises AnsibleFilterError if a parent mount is a network file system.
    """
    above = [other for other in units if unit["path"].startswith(f"{other['path']}/")]
    for other in above:
        if other["is_network"]:
            raise AnsibleFilterError(
                f"mounts: {unit['path']}: it is below {other['path']}, which is a network file "
                "system, so a boot would wait for the server. Choose a path that is not below it, "
                "then run: ansible-playbook setup.yml"
            )
    return [f"{other['path']} ({other['what']}, {other['options']})" for other in above]


def disk_mounts(entries: object, disk: str, device: str = "") -> dict[str, Any]:
    """Return a data disk's ``device`` and the names of the systemd ``units`` that mount it.

    Args:
        entries: the value of ``mounts`` of a worker.
        disk: the disk's name.
        device: the path of the disk's device file; if empty, the path that ``entries`` set, or the
            disk's default path.

    Raises AnsibleFilterError.
    """
    if device and not _DEVICE.fullmatch(device):
        raise AnsibleFilterError(
            f"device: expected {_DEVICE_KEY.expected} ({device!r:.60}). List the names: "
            "ls -l /dev/disk/by-id"
        )
    mounts = [mount for mount in _validated_mounts(entries) if mount.values.get("disk") == disk]
    return {
        "device": device or (mounts[0].device if mounts else BY_ID + disk),
        "units": [mount.unit for mount in mounts],
    }


def _check_listed(mount: Mount, fleet: Sequence[object]) -> None:
    """Raise AnsibleFilterError if no entry of ``tpu_fleet`` has the disk of ``mount``."""
    listed = set()
    for entry in fleet:
        disks = entry.get("data_disks") if isinstance(entry, Mapping) else None
        for disk in disks if isinstance(disks, list) else [disks]:
            listed.add(str(disk.get("name") if isinstance(disk, Mapping) else disk))
    if mount.values["disk"] not in listed:
        raise AnsibleFilterError(
            f"mounts: {mount.path}: no TPU has the disk {mount.values['disk']}. Add it to "
            "data_disks in fleet.yml, then run: ansible-playbook playbooks/create.yml"
        )


def _unit(mount: Mount, hostvars: Mapping[str, Mapping[str, Any]], uid: int) -> dict[str, Any]:
    source, filesystem, options = _source(mount, hostvars, uid)
    if mount.read_only:
        options = ("ro", *options)
    return {
        "unit": mount.unit,
        "path": mount.path,
        "kind": mount.kind.value,
        "what": source,
        "type": filesystem,
        "options": ",".join(_merged_options(options, mount.options)),
        "is_network": not mount.kind.is_disk,
        "disk": mount.values.get("disk", ""),
    }


def _bind_unit(mount: Mount) -> dict[str, Any]:
    """Return the unit that mounts a directory of this worker at the path that other workers use."""
    options = ("bind", *_DATA_OPTIONS)
    return {
        "unit": mount.unit,
        "path": mount.path,
        "kind": "bind",
        "what": mount.export,
        "type": "none",
        "options": ",".join(("ro", *options) if mount.read_only else options),
        "is_network": False,
        "disk": "",
    }


def _source(
    mount: Mount, hostvars: Mapping[str, Mapping[str, Any]], uid: int
) -> tuple[str, str, tuple[str, ...]]:
    """Return what to mount, the type of its file system, and the default options."""
    values = mount.values
    if mount.kind is Kind.NFS:
        return f"{_address(mount, hostvars)}:{mount.export}", "nfs4", _NFS_OPTIONS
    if mount.kind is Kind.FILESTORE:
        return f"{values['server']}:/{values['share']}", "nfs", _FILESTORE_OPTIONS
    if mount.kind is Kind.GCSFUSE:
        options = ("_netdev", "allow_other", f"uid={uid}", f"gid={uid}", "implicit_dirs")
        if values["directory"]:
            options += (f"only_dir={values['directory']}",)
        return values["bucket"], "gcsfuse", options if mount.read_only else ("rw", *options)
    # The worker adds the mount option ro if the disk is attached read-only.
    return mount.device, "ext4", _DATA_OPTIONS


def _address(mount: Mount, hostvars: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the address of a mount's NFS server.

    Raises AnsibleFilterError if the inventory has no such host or no valid address of it.
    """
    server = mount.values["server"]
    if server not in hostvars and "." not in server:
        raise AnsibleFilterError(
            f"mounts: {mount.path}: server: the inventory has no host {server}. Wait until its TPU "
            "is READY (ansible-playbook playbooks/status.yml), or fix the name. A server outside "
            "the inventory needs its address or full DNS name"
        )
    # Do not use hostvars.get: for an unknown host it returns an undefined value, not the default.
    server_variables = hostvars[server] if server in hostvars else {}  # noqa: SIM401
    address = str(
        server_variables.get("tpu_internal_ip") or server_variables.get("ansible_host") or server
    )
    if not _HOST.fullmatch(address):
        raise AnsibleFilterError(
            f"mounts: {mount.path}: the inventory has no valid address of {server} "
            f"({address!r:.60}). Set tpu_internal_ip or ansible_host"
        )
    return address


def _merged_options(options: Sequence[str], user_options: Sequence[str]) -> list[str]:
    """Return ``options`` plus ``user_options``, which replace options with the same name."""
    by_name = {option.partition("=")[0]: option for option in (*options, *user_options)}
    return list(by_name.values())


def mount_exports(
    mounts_by_worker: Sequence[object],
    hosts: Sequence[str],
    hostvars: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, str]]:
    """Return the directories that hosts of the inventory must export by NFS.

    If a directory is on a data disk of its server, ``mount_point`` is where the disk is mounted;
    otherwise it is empty.

    Args:
        mounts_by_worker: the value of ``mounts`` of each worker.
        hosts: all hosts of the inventory.
        hostvars: the variables of all hosts, for the data disks of the servers.

    Raises AnsibleFilterError.
    """
    mounts = [mount for entries in mounts_by_worker for mount in _validated_mounts(entries or ())]
    exports = {
        (mount.values["server"], mount.export): mount
        for mount in mounts
        if mount.kind is Kind.NFS and mount.values["server"] in hosts
    }
    for (server, path), mount in exports.items():
        if _is_system_path(path):
            raise AnsibleFilterError(
                f"mounts: {mount.path}: export: {path} of {server} belongs to the system; use "
                "/mnt/NAME. Fix it in the inventory, then run: ansible-playbook setup.yml"
            )
    return [
        {
            "server": server,
            "path": path,
            "mode": mount.values["mode"] or "1777",
            "unit": unit_of(path),
            "mount_point": _disk_mount_point(
                path, mounts, hostvars[server].get("tpu_data_disks") or ()
            ),
        }
        for (server, path), mount in sorted(exports.items())
    ]


def _disk_mount_point(path: str, mounts: Sequence[Mount], attached: Collection[str]) -> str:
    """Return the mount point of the data disk that contains ``path``; empty if no disk does.

    ``attached`` contains the names of the data disks that are attached to the server's TPU.
    """
    mount_points = [
        mount.path
        for mount in mounts
        if mount.kind.is_disk
        and mount.values["disk"] in attached
        and f"{path}/".startswith(f"{mount.path}/")
    ]
    return max(mount_points, key=len, default="")


def _validated_mounts(entries: object) -> tuple[Mount, ...]:
    try:
        return parse_mounts(entries)
    except ValueError as error:
        raise AnsibleFilterError(
            f"mounts: {error}. Fix it in the inventory, then run: ansible-playbook setup.yml"
        ) from None
