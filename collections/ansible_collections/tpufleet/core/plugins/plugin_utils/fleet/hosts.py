"""Inventory hosts of TPUs: names, groups and variables.

Each worker of a READY TPU is one host. A TPU that is not READY, or whose workers have no address,
is one host without an address, which ``status`` and ``watch`` show and other playbooks skip.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ...module_utils.cloud.errors import NotConfigured
from ...module_utils.cloud.host_keys import KnownHost, alias_of, ssh_options, workers_without_keys
from ...module_utils.cloud.shapes import chips_of, device_glob_of, generation_of, shape_of
from .inert_text import trust_inert

if TYPE_CHECKING:
    from ...module_utils.cloud.nodes import Node
    from .slices import Slice

Address = Literal["external", "internal", "iap"]

#: Names of inventory groups. The host of a TPU that is not READY has the TPU's name; if a group has
#: this name, the zone is appended.
_GROUP_NAMES = frozenset({"all", "ungrouped", "tpu", "leaders", "foreign", "localhost"})


@dataclass(frozen=True)
class HostOptions:
    """Options for ssh connections to workers. Empty strings select Ansible's defaults.

    ``address`` is the inventory option of this name. With ``accept_new``, ssh trusts the first key
    of a worker whose key is not in the known_hosts file.
    """

    address: Address = "external"
    ssh_user: str = ""
    ssh_private_key_file: str = ""
    known_hosts_file: str = ""
    accept_new: bool = False


@dataclass(frozen=True)
class Host:
    """A host of the inventory: a worker of ``node``, or the whole TPU if it has no usable workers.

    ``groups`` are the names of its inventory groups. Ansible later replaces the characters that it
    does not allow in group names.
    """

    name: str
    node: Node
    groups: tuple[str, ...]
    variables: Mapping[str, Any]


@dataclass(frozen=True)
class Hosts:
    """All hosts of the inventory, and one-line warnings for the user."""

    hosts: tuple[Host, ...]
    warnings: tuple[str, ...]


def is_reachable(node: Node) -> bool:
    """Return whether playbooks can use the TPU's workers: it is READY and has endpoints."""
    return node.state == "READY" and bool(node.endpoints)


def build_hosts(
    nodes: Sequence[Node],
    options: HostOptions,
    known: Mapping[str, KnownHost],
    slices: Mapping[str, Slice],
) -> Hosts:
    """Return the inventory hosts of TPUs.

    Args:
        nodes: the TPUs. If TPUs in several zones have the same name, the names of their hosts
            include the zone.
        options: options for ssh connections.
        known: the entries of the known_hosts file, by alias.
        slices: the slice of each existing TPU, by Node.key (see slices_of).
    """
    name_counts = Counter(node.name for node in nodes)
    hosts: list[Host] = []
    warnings: list[str] = []
    for node in nodes:
        missing = _missing(node, options.address, known) if is_reachable(node) else ""
        if missing:
            warnings.append(
                f"TPU {node.where} is READY, but not in the group tpu, because {missing}"
            )
        is_alone = name_counts[node.name] == 1
        name = node.name if is_alone else f"{node.name}-{node.zone}"
        if missing or not is_reachable(node):
            hosts.append(_node_host(node, name, slices[node.key]))
            continue
        warnings += _warnings(node, options, known)
        group = f"tpu_{node.name}" if is_alone else f"tpu_{node.name}_{node.zone}"
        if not is_alone:
            warnings.append(
                f"several zones have a TPU {node.name}: -e tpu={node.name} selects none of them. "
                f"To select the one in {node.zone}: -e tpu={node.name}_{node.zone}"
            )
        hosts += [
            _worker_host(node, f"{name}-w{worker}", worker, group, slices[node.key], options, known)
            for worker in range(len(node.endpoints))
        ]
    return Hosts(tuple(hosts), tuple(warnings))


def check_unique_names(named_hosts: Sequence[tuple[str, Host]]) -> None:
    """Raise NotConfigured if two hosts have the same inventory name.

    ``named_hosts`` has a pair for each host: its inventory name, which the option ``hostnames`` may
    have changed, and the host.
    """
    first: dict[str, Host] = {}
    for name, host in named_hosts:
        other = first.setdefault(name, host)
        if other is not host:
            raise NotConfigured(
                f"two hosts would have the name {name}: of TPU {other.node.where} and of TPU "
                f"{host.node.where}. Set hostnames in the inventory's tpu.yml, for instance "
                "hostnames: [\"inventory_hostname ~ '-' ~ tpu_zone\"]"
            )


def _missing(node: Node, address: Address, known: Mapping[str, KnownHost]) -> str:
    endpoints = node.endpoints
    if address == "external" and not all(endpoint.external_ip for endpoint in endpoints):
        return "it has workers without an external address. Set address: internal or iap in tpu.yml"
    if not all(endpoint.internal_ip for endpoint in endpoints):
        return "it has workers without an internal address"
    if address == "iap":
        hosts = [known.get(alias_of(node.key, worker)) for worker in range(len(endpoints))]
        if not all(host and host.host_name for host in hosts):
            return (
                "its workers have not yet published the host names that IAP needs. Run the "
                "playbook again in a minute"
            )
    return ""


def _warnings(node: Node, options: HostOptions, known: Mapping[str, KnownHost]) -> list[str]:
    warnings = []
    shape = shape_of(node.accelerator_type)
    if shape and shape.workers != len(node.endpoints):
        warnings.append(
            f"TPU {node.where} lists {len(node.endpoints)} workers, but a {node.accelerator_type} "
            f"has {shape.workers}"
        )
    unknown = workers_without_keys(node, known)
    if unknown and options.known_hosts_file:
        workers = "worker" + ("s " if len(unknown) > 1 else " ") + ", ".join(map(str, unknown))
        consequence = (
            "ssh accepts any key of theirs at the first connection (host_keys: accept-new)"
            if options.accept_new
            else "ssh will refuse to connect. Run the playbook again in a minute, or set "
            "host_keys: accept-new in tpu.yml"
        )
        warnings.append(f"{workers} of TPU {node.where} published no ssh host keys: {consequence}")
    return warnings


def node_variables(node: Node, slice_: Slice) -> dict[str, Any]:
    """Return the inventory variables that all hosts of a TPU share."""
    shape = shape_of(node.accelerator_type)
    safe = {
        "tpu_name": node.name,
        "tpu_id": node.id,
        "tpu_zone": node.zone,
        "tpu_accelerator_type": node.accelerator_type,
        "tpu_generation": generation_of(node.accelerator_type),
        "tpu_topology": node.topology,
        "tpu_state": node.state,
        "tpu_health": node.health,
        "tpu_spot": node.is_preemptible,
        "tpu_worker_count": len(node.endpoints) or (shape.workers if shape else 0),
        "tpu_device_glob": device_glob_of(node.accelerator_type),
        "tpu_queued_resource": node.queued_resource,
        "tpu_multislice": slice_.multislice,
        "tpu_slice_id": slice_.id,
        "tpu_slice_count": slice_.count,
    }
    # Users choose disk names and labels, so Ansible must never evaluate these texts as templates.
    free_texts = {
        "tpu_data_disks": [disk.name for disk in node.data_disks],
        "tpu_labels": dict(node.labels),
    }
    return trust_inert(safe) | free_texts


def _node_host(node: Node, name: str, slice_: Slice) -> Host:
    name = f"{node.name}-{node.zone}" if name in _GROUP_NAMES else name
    # Omit the addresses of a lost or deleted TPU: Google may give them to another TPU. A TPU that
    # is repaired or restarted keeps its addresses.
    is_gone = node.is_lost or node.is_being_deleted
    addresses = (
        []
        if is_gone
        else [endpoint.internal_ip for endpoint in node.endpoints if endpoint.internal_ip]
    )
    own_variables = {"tpu_chips": chips_of(node.accelerator_type), "tpu_internal_ips": addresses}
    variables = node_variables(node, slice_) | trust_inert(own_variables)
    return Host(name, node, (f"state_{node.state}",), variables)


def _worker_host(
    node: Node,
    name: str,
    worker: int,
    group: str,
    slice_: Slice,
    options: HostOptions,
    known: Mapping[str, KnownHost],
) -> Host:
    shape = shape_of(node.accelerator_type)
    endpoint = node.endpoints[worker]
    is_external = options.address == "external"
    address = endpoint.external_ip if is_external else endpoint.internal_ip
    own_variables = {
        "tpu_worker_id": worker,
        "tpu_chips": shape.chips_per_worker if shape else 0,
        "tpu_internal_ip": endpoint.internal_ip,
        "tpu_external_ip": endpoint.external_ip,
        "tpu_leader_ip": node.endpoints[0].internal_ip,
        "tpu_slice_leader_ip": slice_.leader_ip,
        "ansible_host": address,
        # Workers in two networks can have the same address. With Ansible's default path of the
        # control socket, ssh to the second worker would use the open connection to the first one,
        # without a check of the host key.
        "ansible_control_path": f"%(directory)s/{_socket_name(node.key, worker, address)}",
    }
    if options.ssh_user:
        own_variables["ansible_user"] = options.ssh_user
    if options.ssh_private_key_file:
        own_variables["ansible_ssh_private_key_file"] = options.ssh_private_key_file
    if ssh_arguments := _ssh_arguments(node, alias_of(node.key, worker), options, known):
        own_variables["ansible_ssh_common_args"] = ssh_arguments
    groups = (
        "tpu",
        group,
        *(("leaders",) if worker == 0 else ()),
        f"zone_{node.zone}",
        f"type_{node.accelerator_type}",
        f"state_{node.state}",
        *((slice_.group,) if slice_.group else ()),
    )
    return Host(name, node, groups, node_variables(node, slice_) | trust_inert(own_variables))


def _socket_name(node_key: str, worker: int, address: str) -> str:
    """Return the name of ssh's control socket for a worker; ssh replaces ``%r`` by the user.

    The name is short, because a socket's path has at most 107 characters (unix(7)).
    """
    digest = hashlib.sha256(f"{alias_of(node_key, worker)} {address}".encode()).hexdigest()
    return f"{digest[:10]}-%%r"


def _ssh_arguments(
    node: Node, alias: str, options: HostOptions, known: Mapping[str, KnownHost]
) -> str:
    ssh = ""
    if options.known_hosts_file:
        ssh = ssh_options(options.known_hosts_file, alias, accept_new=options.accept_new)
    if options.address != "iap":
        return ssh
    # ssh runs ProxyCommand in a shell, so quote the values. ssh itself replaces %p by the port.
    host, project, zone = map(shlex.quote, (known[alias].host_name, node.project, node.zone))
    tunnel = (
        f"gcloud compute start-iap-tunnel {host} %p --listen-on-stdin "
        f"--project={project} --zone={zone} --verbosity=warning"
    )
    return f"{ssh} -o {shlex.quote('ProxyCommand=' + tunnel)}".strip()
