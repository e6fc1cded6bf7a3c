"""Nodes: TPUs as a cloud API reports them, validated and typed.

Format: https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes. Every field
may be absent, false booleans are omitted, and 64-bit integers are strings. Names end up in file
names, group names and on ssh's command line, so every field is validated before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .fields import Fields, path_parts
from .names import Disk, ZonalResource
from .shapes import type_of_config


@dataclass(frozen=True)
class Endpoint:
    """IP addresses of one worker; its index in ``Node.endpoints`` is the worker's number."""

    internal_ip: str
    external_ip: str


@dataclass(frozen=True)
class Node(ZonalResource):
    """One TPU: a slice of one or more workers.

    A string is empty if the API does not report the field. ``queued_resource`` is the name of the
    queued resource, in the same zone, that created the TPU. ``created`` is the time at which the
    TPU's creation began, in unix seconds; 0 if unknown.
    """

    project: str
    zone: str
    name: str
    id: str
    state: str
    health: str
    accelerator_type: str
    topology: str
    runtime_version: str
    spot: bool
    preemptible: bool
    reserved: bool
    network: str
    subnetwork: str
    external_ip: bool
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
    created: float = 0.0

    @property
    def key(self) -> str:
        """Unique key: the id, which no other TPU ever has.

        If the API reports no id, the key is made of zone and name.
        """
        return self.id or f"{self.zone}.{self.name}"

    @property
    def is_preemptible(self) -> bool:
        """Whether the cloud may take the TPU back at any time."""
        return self.spot or self.preemptible

    @property
    def is_lost(self) -> bool:
        """Whether the cloud has taken the TPU back. It never runs again and must be recreated."""
        return self.state in ("PREEMPTED", "TERMINATED")

    @property
    def is_being_deleted(self) -> bool:
        """Whether the deletion of the TPU has begun."""
        return self.state == "DELETING"


def parse_node(data: object) -> Node:
    """Parse one node from the Cloud TPU API's JSON. Raises BadAnswer."""
    project, zone, name = path_parts(data, "nodes", "TPU")
    fields = Fields(data, f"TPU {name} ({zone})")
    config = fields.nested("acceleratorConfig")
    topology = config.identifier("topology")
    scheduling = fields.nested("schedulingConfig")
    networks = fields.nested_list("networkConfigs")
    network = networks[0] if networks else fields.nested("networkConfig")
    account = fields.nested("serviceAccount")
    return Node(
        project=project,
        zone=zone,
        name=name,
        id=fields.id(),
        state=fields.identifier("state") or "UNKNOWN",
        health=fields.identifier("health"),
        accelerator_type=fields.identifier("acceleratorType")
        or type_of_config(config.identifier("type"), topology),
        topology=topology,
        runtime_version=fields.text("runtimeVersion"),
        spot=scheduling.flag("spot"),
        preemptible=scheduling.flag("preemptible"),
        reserved=scheduling.flag("reserved"),
        network=network.text("network"),
        subnetwork=network.text("subnetwork"),
        external_ip=network.flag("enableExternalIps"),
        endpoints=tuple(
            Endpoint(
                endpoint.address("ipAddress"), endpoint.nested("accessConfig").address("externalIp")
            )
            for endpoint in fields.nested_list("networkEndpoints")
        ),
        queued_resource=fields.request_name("queuedResource"),
        multislice=fields.flag("multisliceNode"),
        description=fields.text("description"),
        labels=fields.text_map("labels"),
        tags=fields.text_list("tags"),
        service_account=account.text("email"),
        scopes=account.text_list("scope"),
        secure_boot=fields.nested("shieldedInstanceConfig").flag("enableSecureBoot"),
        data_disks=tuple(
            Disk(disk.text("sourceDisk"), disk.text("mode") != "READ_ONLY")
            for disk in fields.nested_list("dataDisks")
        ),
        metadata=fields.text_map("metadata"),
        created=fields.timestamp("createTime"),
    )
