"""The fleet's own nftables table (nft(8)): from outside ssh alone, among the fleet everything."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

TABLE = "inet tpufleet"
# Google's metadata server (https://cloud.google.com/compute/docs/metadata/querying-metadata). The
# guest agent waits for its answer by a connection older than this table, of which connection
# tracking knows nothing until the worker itself sends something: without a rule of its own, an
# account added to the project would not reach the worker. What has SYN would be a new connection.
METADATA_SERVER = (("ip", "169.254.169.254"), ("ip6", "fd20:ce::254"))


def table_text(peers: Iterable[str], ssh_ports: Iterable[int], open_ports: Iterable[str]) -> str:
    """Write the table, so that loading it replaces the one before in one step.

    Args:
        peers: addresses or networks (IPv4, IPv6) from which everything may come.
        ssh_ports: where sshd listens.
        open_ports: more that may come from outside, such as ``80/tcp`` or ``60000-61000/udp``.

    Raises:
        ValueError: something is no address, no port; the text says which.
    """
    nets = [ipaddress.ip_network(peer, strict=False) for peer in set(peers)]
    sets, rules = [], []
    for version, kind in ((4, "ipv4_addr"), (6, "ipv6_addr")):
        own = sorted(net for net in nets if net.version == version)
        if own:
            listed = ", ".join(str(net) for net in ipaddress.collapse_addresses(own))
            sets.append(
                f"    set fleet{version} {{\n        type {kind}\n        flags interval\n"
                f"        elements = {{ {listed} }}\n    }}\n"
            )
            family = "ip" if version == 4 else "ip6"
            rules.append(f"        {family} saddr @fleet{version} accept\n")
    answers = "".join(
        f"        {family} saddr {address} tcp sport {{ 80, 443 }} tcp flags & syn == 0x0 accept\n"
        for family, address in METADATA_SERVER
    )
    doors = [("tcp", str(port)) for port in sorted(set(ssh_ports))]
    doors += [door(text) for text in open_ports]
    rules += [f"        {protocol} dport {port} accept\n" for protocol, port in doors]
    return f"""table {TABLE}
delete table {TABLE}
table {TABLE} {{
{"".join(sets)}    chain input {{
        type filter hook input priority 0; policy drop;
        iifname "lo" accept
        ct state established,related accept
{answers}        ct state invalid drop
        meta l4proto {{ icmp, icmpv6 }} accept
        udp sport 67 udp dport 68 accept
        udp dport 546 accept
{"".join(rules)}    }}
}}
"""


def door(text: str) -> tuple[str, str]:
    """Read ``port/protocol`` or ``first-last/protocol``. Raises ValueError."""
    ports, _, protocol = text.partition("/")
    numbers = ports.split("-")
    right = protocol in ("tcp", "udp") and len(numbers) <= 2
    if not right or not all(part.isdigit() and 0 < int(part) < 65536 for part in numbers):
        raise ValueError(f"{text} is not like 80/tcp or 60000-61000/udp")
    return protocol, ports
