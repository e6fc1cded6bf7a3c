"""The files by which the workers of one TPU take directories from its leader, and nothing else.

Each worker has a key of its own that never leaves it. The leader lets such a key in from that
worker's internal address alone, and whatever it asks for, it gets an rsync server that reads the
served directories (sshd(8), "AUTHORIZED_KEYS FILE FORMAT"; rsync(1), "USING RSYNC-DAEMON FEATURES
VIA A REMOTE-SHELL CONNECTION"). Pure: texts in, texts out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path("/etc/tpufleet/peer")
USER = "tpufleet-peer"
HOME = Path("/var/lib/tpufleet-peer")
LEADER = "leader"
"""The name under which a worker's ssh_config knows its leader."""

_SERVER = "rsync --server --daemon --config={} ."
_LINE = re.compile(r'^restrict,from="(?P<address>[^"]+)",.* (?P<key>ssh-\S+ \S+)( |$)')


def rsyncd_conf(served: Mapping[str, str]) -> str:
    """Write rsyncd.conf(5) for directories by their module's name: read-only, no way out."""
    parts = ["use chroot = no\nmunge symlinks = no\nreverse lookup = no\nread only = yes\n"]
    parts += [
        f"\n[{name}]\npath = {path}\nlist = no\nrefuse options = copy-links copy-unsafe-links\n"
        for name, path in sorted(served.items())
    ]
    return "".join(parts)


def authorized_keys(
    before: str, keys: Mapping[str, str], addresses: Iterable[str], conf: Path
) -> str:
    """Write who may come: the workers of ``addresses``, with their new key or the one they had.

    ``keys`` are public keys by address. A line of an address that is no worker any more goes.
    """
    had = {
        found["address"]: found["key"] for found in map(_LINE.match, before.splitlines()) if found
    }
    lines = []
    for address in sorted(set(addresses)):
        key = " ".join((keys.get(address) or had.get(address) or "").split()[:2])
        if key:
            command = _SERVER.format(conf)
            lines.append(f'restrict,from="{address}",command="{command}" {key} {address}\n')
    return "".join(lines)


def known_hosts(host_keys: Iterable[str]) -> str:
    """Write the leader's host keys under its name, so that a changed address changes nothing."""
    return "".join(sorted(f"{LEADER} {' '.join(key.split()[:2])}\n" for key in host_keys))


def ssh_config(address: str, folder: Path = FOLDER) -> str:
    """Write ssh_config(5) for the one way from a worker to its leader."""
    return f"""Host {LEADER}
    HostName {address}
    HostKeyAlias {LEADER}
    User {USER}
    IdentityFile {folder}/id_ed25519
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
    BatchMode yes
    ForwardAgent no
    ControlPath none
    Compression no
    Ciphers ^aes128-gcm@openssh.com
    ConnectTimeout 10
    ServerAliveInterval 15
    ServerAliveCountMax 4
"""
