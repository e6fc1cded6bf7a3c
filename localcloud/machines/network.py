"""The machines' network on the host: a bridge, NAT and a name server.

Addresses come from 198.18.0.0/15, which RFC 2544 reserves for tests inside one site. They therefore
do not collide with a company network or VPN that the host uses.
"""

import json
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud, write_atomically
from localcloud.machines import processes
from localcloud.machines.commands import attempt, run

RANGE = IPv4Network("198.18.0.0/15")
# The prefix length of a cloud's subnet: about 1000 machines per cloud, 128 clouds per host.
PREFIX = 22
FIRST_MACHINE = 10
METADATA = IPv4Address("169.254.169.254")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_FORWARDING_BEFORE = Path("/run/tpufleet-ip-forward-before")


@dataclass(frozen=True)
class Network:
    """The network of one local cloud: the cloud and the subnet of its bridge."""

    cloud: LocalCloud
    subnet: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        """The host's address on the bridge, where the name server listens."""
        return self.subnet[1]

    def machine_addresses(self) -> list[IPv4Address]:
        """Return all addresses in the subnet that machines can have, lowest first."""
        return list(self.subnet.hosts())[FIRST_MACHINE - 1 :]


def up(
    cloud: LocalCloud,
    requested: IPv4Network | None,
    report: Callable[[str], None],
    *,
    is_required: bool = False,
) -> Network:
    """Create the bridge, the nftables rules and the name server; enable IP forwarding.

    An existing bridge is kept unless ``requested`` is a different subnet.

    ``requested`` is the subnet to use, ``report`` prints progress. If ``requested`` is None or
    overlaps an address or route of this host, the first free subnet is used; with ``is_required``,
    an overlap raises CloudError instead. Only one process on the host may call ``up`` or ``down``
    at a time.
    """
    subnet = _existing_subnet(cloud)
    if requested and subnet and requested != subnet:
        down(cloud)
        subnet = None
    if subnet is None:
        subnet = free_subnet(_routes(), requested)
        if subnet is None:
            raise CloudError(
                f"every subnet of {RANGE} is in use on this host (see: ip route). Remove a route, "
                f"or choose a free network: {cloud.command('up', '--subnet', 'NETWORK')}"
            )
        if requested and subnet != requested:
            if is_required:
                raise CloudError(
                    f"the machines' subnet {requested} is now in use on this host (see: ip route). "
                    "Remove its route, or remove the local cloud with all its data and create it "
                    f"again: {cloud.command('down')} && {cloud.command('up')}"
                )
            report(f"subnet {requested} is in use on this host: using {subnet}")
        run("ip", "link", "add", cloud.bridge, "type", "bridge")
        run("ip", "address", "add", f"{subnet[1]}/{subnet.prefixlen}", "dev", cloud.bridge)
    run("ip", "link", "set", cloud.bridge, "up")
    network = Network(cloud, subnet)
    run("nft", "-f", "-", stdin=nat_rules(cloud, subnet))
    if _FORWARDING.read_text().strip() == "0":
        _FORWARDING_BEFORE.write_text("0\n")
        _FORWARDING.write_text("1")
    _start_name_server(network)
    return network


def down(cloud: LocalCloud) -> None:
    """Remove everything that ``up`` has created, even if ``up`` was interrupted."""
    processes.end(_hosts_option(cloud), grace_s=2)
    for table in (cloud.nft_table, cloud.nft_external_table, cloud.nft_metadata_table):
        attempt("nft", "delete", "table", "ip", table)
    # Delete the network links explicitly: the kernel takes seconds to delete a dead machine's link.
    ports = [port.name for port in Path(f"/sys/class/net/{cloud.bridge}/brif").glob("*")]
    for link in [*ports, cloud.bridge]:
        attempt("ip", "link", "delete", link)
    others = [link for link in _links() if link.startswith("tpf")]
    if _FORWARDING_BEFORE.exists() and not others:
        _FORWARDING.write_text(_FORWARDING_BEFORE.read_text())
        _FORWARDING_BEFORE.unlink()


def publish_names(cloud: LocalCloud, names: Mapping[str, IPv4Address]) -> None:
    """Write the machines' names to the name server's hosts file and reload the name server."""
    lines = [f"{address} {name}\n" for name, address in sorted(names.items())]
    write_atomically(cloud.hosts, "".join(lines))
    # On SIGHUP, the name server reads its hosts file again (dnsmasq(8)).
    processes.send(_hosts_option(cloud), signal.SIGHUP)


def publish_external(cloud: LocalCloud, addresses: Mapping[IPv4Address, IPv4Address]) -> None:
    """Make machines reachable from this host by external address.

    ``addresses`` maps external addresses to internal ones.
    """
    run("nft", "-f", "-", stdin=external_rules(cloud, addresses))


def external_rules(cloud: LocalCloud, addresses: Mapping[IPv4Address, IPv4Address]) -> str:
    """Return the nftables table that translates external addresses to internal ones."""
    table = f"table ip {cloud.nft_external_table}"
    pairs = ", ".join(
        f"{external} : {internal}" for external, internal in sorted(addresses.items())
    )
    rule = f"dnat to ip daddr map {{ {pairs} }}" if pairs else ""
    return f"""
{table}
delete {table}
{table} {{
    chain in {{
        type nat hook output priority -100;
        {rule}
    }}
}}
"""


def publish_metadata(network: Network, port: int) -> None:
    """Redirect the machines' requests for the metadata server to ``port`` of the gateway."""
    run("nft", "-f", "-", stdin=metadata_rules(network, port))


def metadata_rules(network: Network, port: int) -> str:
    """Return the nftables table that redirects 169.254.169.254:80 to ``port`` of the gateway."""
    table = f"table ip {network.cloud.nft_metadata_table}"
    return f"""
{table}
delete {table}
{table} {{
    chain in {{
        type nat hook prerouting priority dstnat;
        iifname "{network.cloud.bridge}" ip daddr {METADATA} tcp dport 80 dnat to {network.gateway}:{port}
    }}
}}
"""  # noqa: E501  (one rule, one line)


def nat_rules(cloud: LocalCloud, subnet: IPv4Network) -> str:
    """Return the nftables table that allows outbound connections by NAT and no inbound ones.

    Packets to link-local addresses are dropped: if the host is itself a cloud VM, its own metadata
    server has such an address, which machines must not reach.
    """
    return f"""
table ip {cloud.nft_table}
delete table ip {cloud.nft_table}
table ip {cloud.nft_table} {{
    chain out {{
        type nat hook postrouting priority srcnat;
        ip saddr {subnet} ip daddr != {subnet} masquerade
    }}
    chain through {{
        type filter hook forward priority filter;
        iifname "{cloud.bridge}" tcp flags syn tcp option maxseg size set rt mtu
        iifname "{cloud.bridge}" ip daddr 169.254.0.0/16 drop
        oifname "{cloud.bridge}" iifname != "{cloud.bridge}" ct state != {{ established, related }} drop
    }}
}}
"""  # noqa: E501  (one rule, one line)


def free_subnet(
    used: Iterable[IPv4Network], requested: IPv4Network | None = None
) -> IPv4Network | None:
    """Return a subnet that overlaps none of ``used``; None if there is none.

    The result is ``requested`` if it is free, else the first free subnet in RANGE.
    """
    used_subnets = list(used)
    for subnet in [*([requested] if requested else []), *RANGE.subnets(new_prefix=PREFIX)]:
        if not any(subnet.overlaps(network) for network in used_subnets):
            return subnet
    return None


def free_port(host: str, requested: int | None, first: int) -> int:
    """Return a free TCP port of ``host``.

    Prefers ``requested``, then the 100 ports that begin with ``first``, then takes any free port.
    """
    for port in [*([requested] if requested else []), *range(first, first + 100), 0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise CloudError(f"{host}: all TCP ports are in use. To list their processes, run: ss -ltnp")


def _routes() -> list[IPv4Network]:
    """Return the networks of this host's addresses and routes, except default routes.

    0.0.0.0/1 and 128.0.0.0/1 count as default routes: a VPN for all traffic uses them as such.
    """
    networks = []
    for route in json.loads(run("ip", "-json", "-4", "route", "show", "table", "all")):
        if (destination := route["dst"]) != "default":
            network = IPv4Network(destination, strict=False)
            if network.prefixlen > 1:
                networks.append(network)
    return networks


def _existing_subnet(cloud: LocalCloud) -> IPv4Network | None:
    """Return the subnet of the cloud's bridge, or None if there is no bridge.

    A bridge without an address is left from an interrupted ``up`` and is removed.
    """
    if cloud.bridge not in _links():
        return None
    links = json.loads(run("ip", "-json", "-4", "address", "show", "dev", cloud.bridge))
    for address in (a for link in links for a in link.get("addr_info", [])):
        return IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)
    run("ip", "link", "delete", cloud.bridge)
    return None


def _start_name_server(network: Network) -> None:
    option = _hosts_option(network.cloud)
    if processes.with_argument(option):
        return
    if not network.cloud.hosts.exists():
        publish_names(network.cloud, {})
    log_file = network.cloud.directory / "names.log"
    command = [
        "dnsmasq",
        "--conf-file=/dev/null",
        "--pid-file",
        f"--interface={network.cloud.bridge}",
        "--except-interface=lo",
        "--bind-dynamic",
        "--no-hosts",
        option,
        f"--host-record=metadata.google.internal,metadata,{METADATA}",
        "--local-ttl=1",
        "--cache-size=1000",
        "--log-facility=-",
        "--user=root",  # only root can read the hosts file in the cloud's directory
    ]
    with log_file.open("a") as log:
        result = subprocess.run(command, stdout=log, stderr=log, check=False)
    if result.returncode:
        raise CloudError(
            f"the machines' name server did not start on {network.gateway}. See {log_file}"
        )


def _hosts_option(cloud: LocalCloud) -> str:
    """Return the argument that identifies this cloud's name server process."""
    return f"--addn-hosts={cloud.hosts}"


def _links() -> list[str]:
    return [entry.name for entry in Path("/sys/class/net").iterdir()]
