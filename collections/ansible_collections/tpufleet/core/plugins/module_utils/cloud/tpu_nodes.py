"""A node of the Cloud TPU API, read strictly into plain facts. Pure: no network, no files.

The shape is https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes. Every
field may be absent, false booleans are left out, and 64-bit numbers come as strings. What it says
is never trusted: it ends up in file names, group names and ssh's command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from .tpu_errors import TpuApiError
from .tpu_shapes import type_of_config

#: States that a TPU does not come back from; a spot TPU can only be made anew.
DEAD_STATES = frozenset({"PREEMPTED", "TERMINATED"})

#: A project's id, with its domain where it has one, or its number. It ends up on command lines.
_PROJECT = r"(?:[a-z0-9][a-z0-9.-]*:)?[a-z0-9][a-z0-9-]{0,62}"
_NODE_NAME = re.compile(
    rf"projects/({_PROJECT})/locations/([a-z0-9][a-z0-9-]*)/nodes/([a-z0-9]([a-z0-9-]*[a-z0-9])?)"
)
_WORD = re.compile(r"[A-Za-z0-9_.-]*")


class BadNode(TpuApiError):  # noqa: N818  named like its kin in tpu_errors
    """A node that is none: it has no proper name, or a field of another type than the API's."""

    reason = "bad_answer"


@dataclass(frozen=True)
class Endpoint:
    """Where a worker is; its index in the node's list is the worker's number. Empty: none."""

    internal_ip: str
    external_ip: str


@dataclass(frozen=True)
class Disk:
    """A data disk: its name, or the API's whole path of it. Not ``writable``: to read only.

    With ``size_gb`` it is to be made where it is missing, of ``type``, or of the one that goes with
    the TPU.
    """

    source: str
    writable: bool = False
    size_gb: int = 0
    type: str = ""

    @property
    def name(self) -> str:
        """Its name alone."""
        return self.source.rsplit("/", 1)[-1]

    @property
    def mode(self) -> str:
        """The API's word for it."""
        return "READ_WRITE" if self.writable else "READ_ONLY"

    @property
    def words(self) -> str:
        """Say it for people: ``corpus (read-only)``."""
        return f"{self.name} ({'read-write' if self.writable else 'read-only'})"

    def path(self, project: str, zone: str) -> str:
        """Give the API's whole path; a name alone is a disk of the TPU's own project and zone."""
        if "/" in self.source:
            return self.source
        return f"projects/{project}/zones/{zone}/disks/{self.source}"


@dataclass(frozen=True)
class Node:
    """One TPU: a slice of one worker or more. Absent texts are empty."""

    project: str
    zone: str
    name: str
    id: str
    state: str
    health: str
    health_description: str
    accelerator_type: str
    topology: str
    runtime_version: str
    spot: bool
    preemptible: bool
    reserved: bool
    network: str
    subnetwork: str
    external_ips: bool
    endpoints: tuple[Endpoint, ...]
    queued_resource: str
    multislice: bool
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    service_account: str = ""
    scopes: tuple[str, ...] = ()
    secure_boot: bool = False
    data_disks: tuple[Disk, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name this TPU for good: by its id, which no later TPU has, else by zone and name."""
        return self.id or f"{self.zone}.{self.name}"

    @property
    def where(self) -> str:
        """Name this TPU for people, as in ``demo (us-central2-b)``."""
        return f"{self.name} ({self.zone})"


class _Reader:
    """Takes fields of known types out of JSON; anything else is a BadNode naming the field."""

    def __init__(self, data: object, who: str) -> None:
        self.who = who
        self.data = self._checked(data, Mapping, "it")

    def _checked(self, value: object, kind: type, name: str) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadNode(
                f"{self.who}: {name} is {value!r:.60}, which the Cloud TPU API never answers"
            )
        return value

    def _get(self, name: str, kind: type, default: Any) -> Any:
        value = self.data.get(name)
        return default if value is None else self._checked(value, kind, name)

    def text(self, name: str) -> str:
        return str(self._get(name, str, ""))

    def word(self, name: str) -> str:
        value = self.text(name)
        if not _WORD.fullmatch(value):
            raise BadNode(f"{self.who}: {name} is {value!r:.60}, which is not one word")
        return value

    def flag(self, name: str) -> bool:
        return bool(self._get(name, bool, False))

    def part(self, name: str) -> _Reader:
        return _Reader(self._get(name, Mapping, {}), f"{self.who}: {name}")

    def parts(self, name: str) -> list[_Reader]:
        items = self._get(name, list, [])
        return [_Reader(item, f"{self.who}: {name}[{i}]") for i, item in enumerate(items)]

    def texts(self, name: str) -> dict[str, str]:
        pairs = self._get(name, Mapping, {})
        return {
            str(key): str(self._checked(value, str, f"{name}.{key}"))
            for key, value in pairs.items()
        }

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(str(self._checked(item, str, name)) for item in self._get(name, list, []))

    def address(self, name: str) -> str:
        value = self.text(name)
        if not value:
            return ""
        try:
            return str(ip_address(value))
        except ValueError:
            raise BadNode(f"{self.who}: {name} is {value!r:.60}, which is no IP address") from None


def parse_node(data: object) -> Node:
    """Read one node of the API's JSON. Raises BadNode (one line) for what is none."""
    full_name = data.get("name") if isinstance(data, Mapping) else None
    found = _NODE_NAME.fullmatch(full_name) if isinstance(full_name, str) else None
    if not found:
        raise BadNode(
            f"a TPU's name reads projects/…/locations/…/nodes/…, but the API sent {full_name!r:.80}"
        )
    project, zone, name = found[1], found[2], found[3]
    read = _Reader(data, f"TPU {name} ({zone})")
    config = read.part("acceleratorConfig")
    topology = config.word("topology")
    scheduling = read.part("schedulingConfig")
    networks = read.parts("networkConfigs")
    network = networks[0] if networks else read.part("networkConfig")
    account = read.part("serviceAccount")
    node_id = read.data.get("id")
    return Node(
        project=project,
        zone=zone,
        name=name,
        id=str(node_id)
        if isinstance(node_id, int) and not isinstance(node_id, bool)
        else read.word("id"),
        state=read.word("state") or "UNKNOWN",
        health=read.word("health"),
        health_description=read.text("healthDescription"),
        accelerator_type=read.word("acceleratorType")
        or type_of_config(config.word("type"), topology),
        topology=topology,
        runtime_version=read.text("runtimeVersion"),
        spot=scheduling.flag("spot"),
        preemptible=scheduling.flag("preemptible"),
        reserved=scheduling.flag("reserved"),
        network=network.text("network"),
        subnetwork=network.text("subnetwork"),
        external_ips=network.flag("enableExternalIps"),
        endpoints=tuple(
            Endpoint(end.address("ipAddress"), end.part("accessConfig").address("externalIp"))
            for end in read.parts("networkEndpoints")
        ),
        queued_resource=read.text("queuedResource"),
        multislice=read.flag("multisliceNode"),
        description=read.text("description"),
        labels=read.texts("labels"),
        tags=read.words("tags"),
        service_account=account.text("email"),
        scopes=account.words("scope"),
        secure_boot=read.part("shieldedInstanceConfig").flag("enableSecureBoot"),
        data_disks=tuple(
            Disk(disk.text("sourceDisk"), disk.text("mode") != "READ_ONLY")
            for disk in read.parts("dataDisks")
        ),
        metadata=read.texts("metadata"),
    )
