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
AT_ONCE = 32
_ALIAS = re.compile(r"HostKeyAlias=([^\s'\"]+)")


@dataclass(frozen=True)
class Way:
    """The ssh connection of a READY worker.

    ``host`` is its name in the inventory. ``alias`` is its name in the known_hosts file; empty if
    ssh has no HostKeyAlias for it.
    """

    host: str
    address: str
    port: int
    alias: str


def way_of(host: str, variables: Mapping[str, Any]) -> Way:
    """Return the ssh connection of a worker from its inventory variables."""
    alias = _ALIAS.search(str(variables.get("ansible_ssh_common_args", "")))
    return Way(
        host,
        str(variables.get("ansible_host") or host),
        int(variables.get("ansible_port") or 22),
        alias[1] if alias else "",
    )


def knock(way: Way) -> str:
    """Connect to the worker's ssh port and disconnect; return the error, empty on success."""
    try:
        socket.create_connection((way.address, way.port), TIMEOUT_S).close()
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def way_findings(ways: Sequence[Way], address: str, known: Container[str]) -> Iterator[Finding]:
    """Check the connection to each worker.

    With IAP no port is checked, since each check would need its own tunnel.

    Args:
        ways: the ssh connections of the READY workers.
        address: the inventory option ``address``: external, internal or iap.
        known: the aliases that have a key in the known_hosts file.
    """
    if not ways:
        yield ok("ssh", f"no worker is READY (address: {address})")
        return
    everybody = folded([way.host for way in ways])
    if address == "iap":
        yield ok("ssh", f"{everybody} through IAP (not checked)")
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(knock, ways))
        closed: dict[str, list[Way]] = {}
        for way, answer in zip(ways, answers, strict=True):
            closed.setdefault(answer, []).append(way)
        if "" in closed:
            reached = folded([way.host for way in closed.pop("")])
            yield ok("ssh", f"{reached} ({address} address), the port is open")
        for answer, them in closed.items():
            first = f"{them[0].address} port {them[0].port}"
            message = f"{folded([way.host for way in them])}: {answer} ({first})"
            yield problem("ssh", message, _opening(address, answer))
    without_key = [way.host for way in ways if way.alias and way.alias not in known]
    if without_key:
        by = "ansible-inventory --graph reads the keys; or set host_keys: accept-new in tpu.yml"
        yield problem("host keys", f"{folded(without_key)}: no known host key", by)
    else:
        yield ok("host keys", f"{everybody}: known")


def _opening(address: str, answer: str) -> str:
    if "refused" in answer:
        return (
            "no ssh server: wait a minute if it is booting, or recreate the TPU: "
            "ansible-playbook playbooks/delete.yml -e tpu=NAME && "
            "ansible-playbook playbooks/create.yml -e tpu=NAME"
        )
    if address == "external":
        return (
            "allow your address in fleet_firewall of fleet.yml, then run: "
            "ansible-playbook playbooks/create.yml; or set address: iap in tpu.yml"
        )
    return "connect from the fleet's network, or set address: external or iap in tpu.yml"
