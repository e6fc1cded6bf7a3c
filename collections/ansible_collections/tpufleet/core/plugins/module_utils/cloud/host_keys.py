"""The fleet's own known_hosts file: which ssh host keys belong to which worker.

Keys stand under an alias of TPU id and worker number (ssh's HostKeyAlias), so that an address that
changes changes nothing, and an address that another TPU gets later proves nothing. They come from
the workers' guest attributes, over the API's TLS: nobody is asked to trust a key on first sight.
Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"; the comment holds the guest's host name, which IAP
needs.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .tpu_api import TpuApi
from .tpu_errors import DeadlineExceeded, NotConfigured, TpuApiError
from .tpu_nodes import Node

#: Where Google's guest agent publishes the keys, and the entry that holds the guest's host name.
HOST_KEYS_PATH = "hostkeys/"
EVERYTHING_PATH = ""
HOST_NAME_ENTRY = "hostname"

#: How long a READY TPU may take to publish its host keys, seconds; they come late in the guests'
#: boot.
HOST_KEYS_PATIENCE = 120.0

_KEY_TYPE = re.compile(r"(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.\-]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.\-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class KnownHost:
    """One worker's keys by type (base64 of the public key), and the guest's host name if known."""

    alias: str
    keys: Mapping[str, str]
    host_name: str = ""

    def lines(self) -> list[str]:
        """Give its lines in the file."""
        return [
            f"{self.alias} {kind} {key} {self.host_name}".strip() for kind, key in self.keys.items()
        ]


def alias_of(node_key: str, worker: int) -> str:
    """Name a worker in the known_hosts file: TPU id and worker number."""
    return f"{node_key}-w{worker}"


def known_host(alias: str, published: Mapping[str, str]) -> KnownHost | None:
    """Take the keys out of a worker's guest attributes; None if it has not published a valid one.

    The attributes are the guest's word: what is no proper key of the type it claims is left out.
    """
    keys = {
        kind: key
        for kind, key in published.items()
        if _KEY_TYPE.fullmatch(kind) and _is_key_of(kind, key)
    }
    name = published.get(HOST_NAME_ENTRY, "")
    return KnownHost(alias, keys, name if _HOST_NAME.fullmatch(name) else "") if keys else None


def _is_key_of(kind: str, key: str) -> bool:
    """Check that the base64 holds what RFC 4253 (6.6) says: a length, then the key type's name."""
    try:
        raw = base64.b64decode(key, validate=True)
    except ValueError:
        return False
    length = int.from_bytes(raw[:4], "big")
    return len(raw) > 4 + length and raw[4 : 4 + length] == kind.encode()


class KnownHostsFile:
    """The file, read whole and written whole under a lock; mode 0600 in a directory of 0700."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()

    def read(self) -> dict[str, KnownHost]:
        """Give the known workers by alias; none if there is no file. Passes foreign lines over."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise NotConfigured(
                f"can't read known_hosts_file {self.path}: {error.strerror}"
            ) from None
        hosts: dict[str, KnownHost] = {}
        for line in text.splitlines():
            alias, kind, key, *comment = line.split() + [""] * 3
            if alias.startswith(("#", "@", "|")) or not key:
                continue
            earlier = hosts.get(alias, KnownHost(alias, {}))
            name = comment[0] if _HOST_NAME.fullmatch(comment[0]) else ""
            hosts[alias] = KnownHost(alias, {**earlier.keys, kind: key}, name or earlier.host_name)
        return hosts

    def add(self, new: Iterable[KnownHost]) -> None:
        """Add workers; one that is there already keeps the keys it was met with.

        The host name of one that was written down without is added to its keys.
        """
        met = {host.alias: host for host in new}
        if not met:
            return
        with self._locked():
            known = self.read()
            named = {
                alias: replace(known[alias], host_name=host.host_name)
                for alias, host in met.items()
                if alias in known and host.host_name and not known[alias].host_name
            }
            kept = [line for line in self._lines() if line.split(" ", 1)[0] not in named]
            fresh = [host for alias, host in met.items() if alias not in known]
            self._write(
                kept + [line for host in [*named.values(), *fresh] for line in host.lines()]
            )

    def forget(self, node_key: str) -> None:
        """Remove all workers of a TPU that is gone."""
        ours = re.compile(re.escape(node_key) + r"-w[0-9]+\s")
        if not self.path.exists():
            return
        with self._locked():
            self._write([line for line in self._lines() if not ours.match(line)])

    def _lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []

    def _write(self, lines: Sequence[str]) -> None:
        beside = self.path.with_name(self.path.name + ".new")
        with os.fdopen(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.writelines(f"{line}\n" for line in lines)
        beside.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(
                self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError as error:
            raise NotConfigured(
                f"can't write known_hosts_file {self.path}: {error.strerror}"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def published_keys(
    api: TpuApi, zone: str, name: str, node_key: str, workers: int, *, with_names: bool = False
) -> dict[int, KnownHost]:
    """Ask a READY TPU for its workers' host keys; give those that have published some, by worker.

    One request for all workers; one for each where the answer doesn't tell which entry is whose.
    ``with_names`` also asks for the guests' host names.
    """
    path = EVERYTHING_PATH if with_names else HOST_KEYS_PATH
    answers = api.guest_attributes(zone, name, path)
    if len(answers) == workers:
        by_worker = dict(enumerate(answers))
    else:
        by_worker = {}
        for worker in range(workers):
            try:
                answer = api.guest_attributes(zone, name, path, [worker])
            except TpuApiError:
                continue  # a worker that has published nothing yet may be unknown there
            by_worker[worker] = answer[0] if answer else {}
    found = {
        worker: known_host(alias_of(node_key, worker), entry) for worker, entry in by_worker.items()
    }
    return {worker: host for worker, host in found.items() if host}


def remember_host_keys(
    api: TpuApi, node: Node, known_hosts_file: str, progress: Callable[[str], None]
) -> list[int]:
    """Wait for the workers' published host keys, write them down; give the workers without."""
    file = KnownHostsFile(known_hosts_file)
    deadline = api.deadline_in(HOST_KEYS_PATIENCE)
    tried = 0
    while True:
        known = file.read()
        missing = [w for w in range(len(node.endpoints)) if alias_of(node.key, w) not in known]
        if missing:
            found = published_keys(
                api, node.zone, node.name, node.key, len(node.endpoints), with_names=True
            )
            file.add(found.values())
            missing = [worker for worker in missing if worker not in found]
        if not missing:
            return []
        progress("waiting for the ssh host keys")
        try:
            api.pause("read the host keys", tried, deadline)
        except DeadlineExceeded:
            return missing
        tried += 1


def ssh_options(known_hosts: str, alias: str, *, accept_new: bool) -> str:
    """Give ssh's command line options that check the worker's key in the fleet's own file."""
    path = str(Path(known_hosts).expanduser())
    if re.search(r"[^A-Za-z0-9_./+,:@\-]", path):
        # ssh splits this value at spaces and expands %; Ansible splits the whole line like a shell.
        path = "'\"" + path.replace("%", "%%").replace("'", "'\\''") + "\"'"
    strict = "accept-new" if accept_new else "yes"
    return (
        f"-o HostKeyAlias={alias} -o UserKnownHostsFile={path} "
        f"-o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking={strict}"
    )
