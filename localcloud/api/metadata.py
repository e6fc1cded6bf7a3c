"""A worker's metadata: the tree below ``computeMetadata/v1`` on a TPU VM, and its queries.

Paths and values are those of Compute Engine
(https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys). The instance's attributes
are the node's own metadata and the attributes that JAX and libtpu read. For queries see
https://cloud.google.com/compute/docs/metadata/querying-metadata.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.api import catalog
from localcloud.api.node_message import PORT, accelerator_of, is_spot
from localcloud.api.node_table import Node, Worker

MEGASCALE_PORT = 8081
# Machine types by the accelerator type's prefix (https://cloud.google.com/tpu/docs, "TPU machine
# types"). {} is replaced by the number of chips per VM. Google documents no machine type of v2; the
# one here is named like v3's.
_MACHINE_TYPES = {
    "v2": "ct2-hightpu-{}t",
    "v3": "ct3-hightpu-{}t",
    "v4": "ct4p-hightpu-{}t",
    "v5litepod": "ct5lp-hightpu-{}t",
    "v5p": "ct5p-hightpu-{}t",
    "v6e": "ct6e-standard-{}t",
}
ROOT = ("computeMetadata", "v1")
TEXT, JSON = "application/text", "application/json"
# Function that returns an access token, as a JSON object, for a service account's email.
Tokens = Callable[[str], Mapping[str, Any]]


class Attributes(dict[str, Any]):
    """A directory with user-defined keys, which are not converted to camelCase in JSON."""


class Lines(tuple[str, ...]):
    """A leaf of the metadata tree with several values: lines in text, a list in JSON."""


class Token(str):
    """A leaf that contains a service account's email and is served as its access token.

    Only a query of the leaf's own path returns the token; recursive queries omit the leaf.
    """


# A directory is a mapping or a list; a leaf is a string, a number, Lines or a Token.
Tree = Mapping[str, Any] | Sequence[Any] | str | int


@dataclass(frozen=True)
class Guest:
    """A worker that requests metadata, and the data that its metadata consists of.

    ``number`` is the project's number; ``slices`` are the nodes of the worker's multislice queued
    resource, in the order of their slice ids; ``maintained`` are the indices of the node's workers
    in maintenance; ``shared`` is the project's metadata.
    """

    number: int
    node: Node
    worker: Worker
    slices: Sequence[Node] = ()
    maintained: Collection[int] = ()
    shared: Mapping[str, str] | None = None


def tree(guest: Guest) -> dict[str, Any]:
    """Return the guest's metadata as nested dicts, from ``computeMetadata/v1`` downwards."""
    return {
        "instance": _instance(guest),
        "project": {
            "attributes": Attributes(guest.shared or {}),
            "numeric-project-id": guest.number,
            "project-id": catalog.PROJECT_ID,
        },
    }


def _instance(guest: Guest) -> dict[str, Any]:
    node, worker = guest.node, guest.worker
    accelerator = accelerator_of(node.body)
    kind = _MACHINE_TYPES[accelerator.name.rpartition("-")[0]]
    chips = accelerator.chips // accelerator.workers
    maintained = worker.index in guest.maintained
    return {
        "attributes": Attributes({**node.body.get("metadata", {}), **_attributes(guest)}),
        "description": node.body.get("description", ""),
        "hostname": f"{worker.machine}.{node.zone}.c.{catalog.PROJECT_ID}.internal",
        "id": _number(worker.machine),
        "machine-type": f"projects/{guest.number}/machineTypes/{kind.format(chips)}",
        "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE" if maintained else "NONE",
        "name": worker.machine,
        "network-interfaces": [_interface(guest)],
        "preempted": _truth(node.preempt_at is not None or node.state == "PREEMPTED"),
        "scheduling": {
            "automatic-restart": _truth(not is_spot(node.body)),
            "on-host-maintenance": "TERMINATE",
            "preemptible": _truth(is_spot(node.body)),
        },
        "service-accounts": _service_accounts(node),
        "tags": Lines(node.body.get("tags", ())),
        "zone": f"projects/{guest.number}/zones/{node.zone}",
    }


def _interface(guest: Guest) -> dict[str, Any]:
    network = guest.node.body.get("networkConfig", {})
    external = [{"external-ip": str(guest.worker.external), "type": "ONE_TO_ONE_NAT"}]
    return {
        "access-configs": external if network.get("enableExternalIps") else [],
        "ip": str(guest.worker.address),
    }


def _service_accounts(node: Node) -> dict[str, Any]:
    account = node.body.get("serviceAccount", {})
    if not (email := account.get("email")):
        return {}
    entry = {
        "aliases": Lines(["default"]),
        "email": email,
        "scopes": Lines(account.get("scope", ())),
        "token": Token(email),
    }
    return {"default": entry, email: entry}


def _attributes(guest: Guest) -> dict[str, str]:
    """Return the attributes that every TPU VM has; the node's metadata cannot override them."""
    node = guest.node
    endpoints = [f"unknown:unknown:{worker.address}" for worker in node.workers]
    return {
        "accelerator-type": node.body["acceleratorType"],
        "agent-node-name": node.node_id,
        "agent-worker-number": str(guest.worker.index),
        "instance-id": node.node_id,
        "tpu-env": tpu_env(guest),
        "worker-network-endpoints": ",".join(endpoints),
    }


def tpu_env(guest: Guest) -> str:
    """Return the attribute ``tpu-env``: lines ``NAME: 'value'``, as JAX and libtpu parse them."""
    node = guest.node
    accelerator = accelerator_of(node.body)
    chips, hosts = bounds(accelerator)
    values = {
        "ACCELERATOR_TYPE": accelerator.name,
        "CHIPS_PER_HOST_BOUNDS": chips,
        "CONSUMER_PROJECT_ID": catalog.PROJECT_ID,
        "CONSUMER_PROJECT_NUMBER": str(guest.number),
        "HOST_BOUNDS": hosts,
        "NODE_ID": node.node_id,
        "RUNTIME_VERSION": node.body["runtimeVersion"],
        "TOPOLOGY": accelerator.topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": chips,
        "TPU_PROCESS_BOUNDS": hosts,
        "TPU_PROCESS_PORT": str(PORT),
        "TYPE": accelerator.config_type,
        "WORKER_ID": str(guest.worker.index),
        "ZONE": node.zone,
        **_megascale(guest),
    }
    return "".join(f"{name}: '{value}'\n" for name, value in sorted(values.items()))


def _megascale(guest: Guest) -> dict[str, str]:
    order = [node.uid for node in guest.slices]
    if guest.node.uid not in order or not guest.slices[0].workers:
        return {}
    first = guest.slices[0].workers[0].address
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": f"{first}:{MEGASCALE_PORT}",
        "MEGASCALE_NUM_SLICES": str(len(order)),
        "MEGASCALE_SLICE_ID": str(order.index(guest.node.uid)),
    }


def bounds(accelerator: catalog.Accelerator) -> tuple[str, str]:
    """Return the shape of a VM in chips and the shape of a slice in VMs.

    Each shape is a string with the sizes in three dimensions, such as ``2,2,1``.
    """
    sides = [*map(int, accelerator.topology.split("x")), 1][:3]
    host = sides if accelerator.workers == 1 else [2, 2, 1]
    grid = [side // own for side, own in zip(sides, host, strict=True)]
    return ",".join(map(str, host)), ",".join(map(str, grid))


def _number(text: str) -> int:
    """Return a number that identifies a text: a hash that fits a positive 64-bit integer."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def _truth(value: bool) -> str:
    return "TRUE" if value else "FALSE"


@dataclass(frozen=True)
class Reply:
    """A response: code, body, content type, and the ``location`` of a redirect."""

    code: int
    body: str
    kind: str = TEXT
    location: str = ""

    @property
    def etag(self) -> str:
        """Value of the ETag header: a hash of the body."""
        return hashlib.sha256(self.body.encode()).hexdigest()[:16]


def answer(root: Tree, path: str, query: Mapping[str, str], tokens: Tokens) -> Reply:
    """Return the response to a GET of ``path`` in the metadata ``root``.

    The response contains the value of a leaf, or the names in a directory. If the query has
    ``recursive``, the response contains all leaves below the directory. ``tokens`` returns the
    access token of a service account.
    """
    value = _find({ROOT[0]: {ROOT[1]: root}}, [segment for segment in path.split("/") if segment])
    if value is None:
        return Reply(404, f"{path} is not in this machine's metadata\n")
    recursive = query.get("recursive", "").lower() == "true"
    kind = query.get("alt", "json" if recursive else "text").lower()
    if kind not in ("json", "text"):
        return Reply(400, f"alt is {kind}, not json or text\n")
    if isinstance(value, Token):
        return Reply(200, json.dumps(tokens(value)), JSON)
    if not _is_directory(value):
        if path.endswith("/"):
            return Reply(404, f"{path} is not a directory\n")
        if kind == "json":
            return Reply(200, json.dumps(_json(value)), JSON)
        return Reply(200, _text(value))
    if not recursive:
        if not path.endswith("/"):
            return Reply(301, "", location=f"{path}/")
        names = [f"{name}/" if _is_directory(entry) else name for name, entry in _entries(value)]
        return Reply(200, "".join(f"{name}\n" for name in names))
    if kind == "json":
        return Reply(200, json.dumps(_json(value)), JSON)
    return Reply(200, "".join(f"{name} {text}\n" for name, text in _flat(value)))


def _find(tree: Any, segments: Sequence[str]) -> Any:
    for segment in segments:
        if not _is_directory(tree):
            return None
        tree = dict(_entries(tree)).get(segment)
    return tree


def _is_directory(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _entries(directory: Any) -> list[tuple[str, Any]]:
    if isinstance(directory, Mapping):
        return sorted(directory.items())
    return [(str(index), value) for index, value in enumerate(directory)]


def _text(value: Any) -> str:
    return "".join(f"{line}\n" for line in value) if isinstance(value, Lines) else str(value)


def _flat(directory: Any) -> list[tuple[str, str]]:
    """Return path and text of every leaf below a directory, except tokens."""
    leaves = []
    for name, value in _entries(directory):
        if _is_directory(value):
            leaves += [(f"{name}/{path}", text) for path, text in _flat(value)]
        elif not isinstance(value, Token):
            leaves.append((name, _text(value).strip()))
    return leaves


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        has_user_keys = isinstance(value, Attributes)
        return {
            name if has_user_keys else _camel_case(name): _json(entry)
            for name, entry in _entries(value)
            if not isinstance(entry, Token)
        }
    if isinstance(value, list | Lines):
        return [_json(entry) for entry in value]
    return value


def _camel_case(name: str) -> str:
    """Convert a key such as ``machine-type`` to ``machineType``.

    Keys that are email addresses (of service accounts) stay unchanged.
    """
    if "@" in name:
        return name
    head, *tail = name.split("-")
    return head + "".join(word.capitalize() for word in tail)
