"""Checks of the connections to workers: an open ssh port, a known host key."""

from __future__ import annotations

import re
import socket
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...module_utils.worker.doctor_finding import Finding, ok, problem
from ..view.folded_names import folded

TIMEOUT_S = 5.0
MAX_PARALLEL = 32
_ALIAS = re.compile(r"HostKeyAlias=([^\s'\"]+)")


@dataclass(frozen=True)
class SshConnection:
    """The ssh connection of a READY worker.

    ``host`` is the worker's name in the inventory. ``alias`` is its name in the known_hosts file;
    empty if the worker's ssh options have no HostKeyAlias.
    """

    host: str
    address: str
    port: int
    alias: str


@dataclass(frozen=True)
class ConnectionFailure:
    """Why a connection failed: ``reason``, and whether the worker refused it."""

    reason: str
    is_refused: bool = False


def connection_of(host: str, variables: Mapping[str, Any]) -> SshConnection:
    """Return the ssh connection of a worker from its inventory variables."""
    alias = _ALIAS.search(str(variables.get("ansible_ssh_common_args", "")))
    return SshConnection(
        host,
        str(variables.get("ansible_host") or host),
        int(variables.get("ansible_port") or 22),
        alias[1] if alias else "",
    )


def try_connect(connection: SshConnection) -> ConnectionFailure | None:
    """Connect to the worker's ssh port and disconnect; return the failure, None on success."""
    try:
        socket.create_connection((connection.address, connection.port), TIMEOUT_S).close()
    except TimeoutError:
        return ConnectionFailure("no answer")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return ConnectionFailure(reason, isinstance(error, ConnectionRefusedError))
    return None


def connection_findings(
    connections: Sequence[SshConnection], address: str, known: Container[str]
) -> Iterator[Finding]:
    """Check the connection to each worker.

    With IAP no port is checked, since each check would need its own tunnel. ``address`` is the
    inventory option (external, internal or iap), ``known`` contains the aliases that have a host
    key in the known_hosts file.
    """
    if not connections:
        yield ok("ssh", f"no worker is READY (address: {address})")
        return
    all_hosts = folded([connection.host for connection in connections])
    if address == "iap":
        yield ok("ssh", f"{all_hosts}: connected through IAP, so the port is not checked")
    else:
        with ThreadPoolExecutor(MAX_PARALLEL) as pool:
            failures = list(pool.map(try_connect, connections))
        by_failure: dict[ConnectionFailure, list[SshConnection]] = {}
        reachable = []
        for connection, failure in zip(connections, failures, strict=True):
            if failure:
                by_failure.setdefault(failure, []).append(connection)
            else:
                reachable.append(connection.host)
        if reachable:
            yield ok("ssh", f"{folded(reachable)}: the port is open ({address} address)")
        for failure, failed in by_failure.items():
            hosts = folded([connection.host for connection in failed])
            first = f"{failed[0].address} port {failed[0].port}"
            message = f"{hosts}: {failure.reason} ({first})"
            yield problem("ssh", message, _connect_fix(address, failure))
    without_key = [
        connection.host
        for connection in connections
        if connection.alias and connection.alias not in known
    ]
    if without_key:
        fix = (
            "read the keys from the API: ansible-inventory --graph; "
            "or set host_keys: accept-new in tpu.yml"
        )
        yield problem("host keys", f"{folded(without_key)}: host key unknown", fix)
    else:
        yield ok("host keys", f"{all_hosts}: known")


def _connect_fix(address: str, failure: ConnectionFailure) -> str:
    if failure.is_refused:
        return (
            "wait a minute if the worker is booting, or recreate its TPU: "
            "ansible-playbook playbooks/delete.yml -e tpu=NAME && "
            "ansible-playbook playbooks/create.yml -e tpu=NAME"
        )
    if address == "external":
        return (
            "allow your address in fleet_firewall of fleet.yml, then run: "
            "ansible-playbook playbooks/create.yml; or set address: iap in tpu.yml"
        )
    return "connect from the fleet's network, or set address: external or iap in tpu.yml"
