"""The machines' network: a bridge, the way out through NAT, and a name server; all of it this
cloud's own, found again by the cloud's tag and taken away whole.

Addresses come from 198.18.0.0/15, which RFC 2544 sets aside for tests inside one site, so that
no company network or VPN of the host is hidden by them.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from localcloud.failure import CloudError
from localcloud.machines import processes
from localcloud.place import Place

RANGE = IPv4Network("198.18.0.0/15")
_PRIVATE = IPv4Network("10.0.0.0/8")  # suggested where RANGE is in use (RFC 1918)
PREFIX = 22  # a thousand machines a cloud, 128 clouds a host
FIRST_MACHINE = 10
METADATA = IPv4Address("169.254.169.254")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_FORWARDING_BEFORE = Path("/run/tpufleet-ip-forward-before")


@dataclass(frozen=True)
class Network:
    """One cloud's network as it stands on the host."""

    place: Place
    subnet: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        """The host's own address on the bridge, where the name server listens."""
        return self.subnet[1]

    def machine_addresses(self) -> list[IPv4Address]:
        """The addresses for machines, lowest first."""
        return list(self.subnet.hosts())[FIRST_MACHINE - 1 :]


def up(
    place: Place, wanted: IPv4Network | None, say: Callable[[str], None], *, needed: bool = False
) -> Network:
    """Make the bridge, the NAT table and the name server; what stands already is kept.

    Without a wanted subnet, or where it overlaps an address or route of this host, the first is
    taken that does not; but a wanted one that is ``needed`` is refused then by a CloudError.
    To be called, as ``down`` is, by one process of the host at a time.
    """
    subnet = _present(place)
    if wanted and subnet and wanted != subnet:
        down(place)
        subnet = None
    if subnet is None:
        subnet = free_subnet(_routes(), wanted)
        if subnet is None:
            spare = free_subnet(_routes(), within=_PRIVATE)
            raise CloudError(
                f"every subnet of {RANGE} is in use on this host (ip route). Choose another: "
                f"{place.command('up', '--subnet', str(spare))}"
            )
        if wanted and subnet != wanted:
            if needed:
                raise CloudError(
                    f"this cloud's machines have addresses in {wanted}, which this host now uses "
                    f"for something else (ip route). Free it, or remove the machines: "
                    f"{place.command('down', '--yes')} && {place.command('up')}"
                )
            say(f"subnet {wanted} is in use on this host: taking {subnet}")
        _run("ip", "link", "add", place.bridge, "type", "bridge")
        _run("ip", "address", "add", f"{subnet[1]}/{subnet.prefixlen}", "dev", place.bridge)
    _run("ip", "link", "set", place.bridge, "up")
    network = Network(place, subnet)
    _run("nft", "-f", "-", stdin=nat_rules(place, subnet))
    if _FORWARDING.read_text().strip() == "0":
        _FORWARDING_BEFORE.write_text("0\n")
        _FORWARDING.write_text("1")
    _start_name_server(network)
    return network


def down(place: Place) -> None:
    """Take away what ``up`` made, whether or not it was made whole."""
    processes.end(_hosts_option(place), grace_s=2)
    for table in (place.nft_table, place.nft_outside_table, place.nft_metadata_table):
        subprocess.run(["nft", "delete", "table", "ip", table], capture_output=True, check=False)
    # The kernel takes a dead machine's link away by itself, but some seconds later.
    ports = [port.name for port in Path(f"/sys/class/net/{place.bridge}/brif").glob("*")]
    for link in [*ports, place.bridge]:
        subprocess.run(["ip", "link", "delete", link], capture_output=True, check=False)
    others = [link for link in _links() if link.startswith("tpf")]
    if _FORWARDING_BEFORE.exists() and not others:
        _FORWARDING.write_text(_FORWARDING_BEFORE.read_text())
        _FORWARDING_BEFORE.unlink()


def publish_names(place: Place, names: Mapping[str, IPv4Address]) -> None:
    """Let the machines find each other by name."""
    lines = [f"{address} {name}\n" for name, address in sorted(names.items())]
    partial = place.hosts.with_suffix(".partial")
    partial.write_text("".join(lines))
    partial.chmod(0o644)
    partial.rename(place.hosts)
    for pid in processes.with_argument(_hosts_option(place)):
        with contextlib.suppress(ProcessLookupError):
            _hang_up(pid)


def publish_outside(place: Place, addresses: Mapping[IPv4Address, IPv4Address]) -> None:
    """Let this host reach machines by their external addresses, which map to their own."""
    _run("nft", "-f", "-", stdin=outside_rules(place, addresses))


def outside_rules(place: Place, addresses: Mapping[IPv4Address, IPv4Address]) -> str:
    """Write the table that turns external addresses into machines' own, as Google's NAT does."""
    table = f"table ip {place.nft_outside_table}"
    pairs = ", ".join(f"{external} : {own}" for external, own in sorted(addresses.items()))
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
    """Lead the machines' requests for the metadata server to this port of the gateway."""
    _run("nft", "-f", "-", stdin=metadata_rules(network, port))


def metadata_rules(network: Network, port: int) -> str:
    """Write the table that makes the gateway the metadata server of this cloud's machines alone."""
    table = f"table ip {network.place.nft_metadata_table}"
    return f"""
{table}
delete {table}
{table} {{
    chain in {{
        type nat hook prerouting priority dstnat;
        iifname "{network.place.bridge}" ip daddr {METADATA} tcp dport 80 dnat to {network.gateway}:{port}
    }}
}}
"""  # noqa: E501  (one rule, one line)


def nat_rules(place: Place, subnet: IPv4Network) -> str:
    """Write the cloud's own nftables table: out through NAT, nothing in from elsewhere.

    Nothing reaches the host's own links either, on which a cloud's VM has its metadata server.
    """
    return f"""
table ip {place.nft_table}
delete table ip {place.nft_table}
table ip {place.nft_table} {{
    chain out {{
        type nat hook postrouting priority srcnat;
        ip saddr {subnet} ip daddr != {subnet} masquerade
    }}
    chain through {{
        type filter hook forward priority filter;
        iifname "{place.bridge}" tcp flags syn tcp option maxseg size set rt mtu
        iifname "{place.bridge}" ip daddr 169.254.0.0/16 drop
        oifname "{place.bridge}" iifname != "{place.bridge}" ct state != {{ established, related }} drop
    }}
}}
"""  # noqa: E501  (one rule, one line)


def free_subnet(
    taken: Iterable[IPv4Network], wanted: IPv4Network | None = None, within: IPv4Network = RANGE
) -> IPv4Network | None:
    """Choose a subnet that overlaps nothing of ``taken``: the wanted one, else the first free."""
    busy = list(taken)
    for subnet in [*([wanted] if wanted else []), *within.subnets(new_prefix=PREFIX)]:
        if not any(subnet.overlaps(other) for other in busy):
            return subnet
    return None


def _routes() -> list[IPv4Network]:
    """Read where this host's addresses and routes lead, but for the default route."""
    taken = []
    for route in json.loads(_run("ip", "-json", "-4", "route", "show", "table", "all")):
        if (destination := route["dst"]) != "default":
            taken.append(IPv4Network(destination, strict=False))
    return taken


def _present(place: Place) -> IPv4Network | None:
    """Read the subnet of the bridge that stands from before; a half-made bridge is removed."""
    if place.bridge not in _links():
        return None
    told = json.loads(_run("ip", "-json", "-4", "address", "show", "dev", place.bridge))
    for address in (a for link in told for a in link.get("addr_info", [])):
        return IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)
    _run("ip", "link", "delete", place.bridge)
    return None


def _start_name_server(network: Network) -> None:
    option = _hosts_option(network.place)
    if processes.with_argument(option):
        return
    if not network.place.hosts.exists():
        publish_names(network.place, {})
    log_file = network.place.directory / "names.log"
    command = [
        "dnsmasq",
        "--conf-file=/dev/null",
        "--pid-file",
        f"--interface={network.place.bridge}",
        "--except-interface=lo",
        "--bind-dynamic",
        "--no-hosts",
        option,
        f"--host-record=metadata.google.internal,metadata,{METADATA}",
        "--local-ttl=1",
        "--cache-size=1000",
        "--log-facility=-",
        "--user=root",  # it reads the cloud's directory, which only root can
    ]
    with log_file.open("a") as log:
        done = subprocess.run(command, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise CloudError(
            f"the machines' name server does not start on {network.gateway}: "
            f"see the end of {log_file}"
        )


def _hang_up(pid: int) -> None:
    """Ask dnsmasq to read its hosts again (dnsmasq(8), "NOTES")."""
    os.kill(pid, signal.SIGHUP)


def _hosts_option(place: Place) -> str:
    """The argument by which this cloud's name server is known."""
    return f"--addn-hosts={place.hosts}"


def _links() -> list[str]:
    return [entry.name for entry in Path("/sys/class/net").iterdir()]


def _run(*command: str, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CloudError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
