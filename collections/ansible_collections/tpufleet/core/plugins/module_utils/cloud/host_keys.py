"""The fleet's known_hosts file, with the ssh host keys of its workers.

A key is stored under an alias (ssh's HostKeyAlias) instead of an address. The alias is the TPU's id
with the worker's number. So a worker stays known when its address changes, and another TPU with the
same address is not trusted. Workers publish their keys as guest attributes. The API returns these
over TLS, so that ssh need not trust a key on first use. Format: sshd(8), "SSH_KNOWN_HOSTS FILE
FORMAT". The comment field contains the guest's host name, which IAP tunnels need.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CloudError, DeadlineExceeded, NoAnswer, NotConfigured, NotFound, Unavailable

if TYPE_CHECKING:
    from .changes import Progress
    from .http import Polling
    from .nodes import Node
    from .tpu_api import TpuApi

#: The path of the host keys in the guest attributes, and the name of the attribute with the host
#: name. Google's guest agent sets these attributes.
_HOST_KEYS_PATH = "hostkeys/"
_HOST_NAME_ENTRY = "hostname"

#: Seconds to wait for the host keys, which guests may publish only after the TPU is READY.
HOST_KEYS_TIMEOUT_S = 120.0

#: Number of pauses to skip (Polling.pause), so that the first one takes 3 s and there are at most
#: ten reads a minute. If there are more, Google may remove attributes that the guest is writing:
#: https://cloud.google.com/compute/docs/metadata/manage-guest-attributes.
_SLOW_PAUSE = 7

#: Error handler (PEP 383) that keeps bytes that are not UTF-8: other programs may have written such
#: bytes to the known_hosts file.
_KEEP_BYTES = "surrogateescape"

_KEY_TYPE = re.compile(r"(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.\-]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.\-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class KnownHost:
    """A worker's public host keys (base64, by key type), and the guest's host name or ""."""

    alias: str
    keys: Mapping[str, str]
    host_name: str = ""

    def lines(self) -> list[str]:
        """Return the worker's lines in the known_hosts file, one for each key."""
        return [
            f"{self.alias} {kind} {key} {self.host_name}".strip() for kind, key in self.keys.items()
        ]


def alias_of(node_key: str, worker: int) -> str:
    """Return the alias of a worker in the known_hosts file. ``node_key`` is the TPU's Node.key."""
    return f"{node_key}-w{worker}"


def known_host(alias: str, published: Mapping[str, str]) -> KnownHost | None:
    """Return a worker's keys from its guest attributes; None if no key is valid.

    ``published`` are the guest attributes by name, and ``alias`` is the worker's name in the
    known_hosts file. Invalid keys and host names are dropped, because programs on the guest can
    write anything there.
    """
    keys = {
        kind: key
        for kind, key in published.items()
        if _KEY_TYPE.fullmatch(kind) and _is_key_of(kind, key)
    }
    name = published.get(_HOST_NAME_ENTRY, "")
    return KnownHost(alias, keys, name if _HOST_NAME.fullmatch(name) else "") if keys else None


def _is_key_of(kind: str, key: str) -> bool:
    """Return whether a base64 key starts with the length and text of ``kind`` (RFC 4253, 6.6)."""
    try:
        raw = base64.b64decode(key, validate=True)
    except ValueError:
        return False
    length = int.from_bytes(raw[:4], "big")
    return len(raw) > 4 + length and raw[4 : 4 + length] == kind.encode()


class KnownHostsFile:
    """A known_hosts file with mode 0600. Each change locks the file and rewrites all of it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()

    def read(self) -> dict[str, KnownHost]:
        """Return the known workers by alias, skipping invalid lines; empty if there is no file."""
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
        """Add workers to the file.

        For a worker that is already in the file, only a missing host name is added.
        """
        added = {host.alias: host for host in new}
        if not added:
            return
        with self._locked():
            known = self.read()
            completed = {
                alias: replace(known[alias], host_name=host.host_name)
                for alias, host in added.items()
                if alias in known and host.host_name and not known[alias].host_name
            }
            unchanged = [line for line in self._lines() if line.split(" ", 1)[0] not in completed]
            new_hosts = [host for alias, host in added.items() if alias not in known]
            self._write(
                unchanged
                + [line for host in [*completed.values(), *new_hosts] for line in host.lines()]
            )

    def forget(self, node_key: str) -> None:
        """Remove the keys of all workers of a deleted TPU. ``node_key`` is the TPU's Node.key."""
        pattern = re.compile(re.escape(node_key) + r"-w[0-9]+\s")
        if not self.path.exists():
            return
        with self._locked():
            self._write([line for line in self._lines() if not pattern.match(line)])

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        return self.path.read_text(encoding="utf-8", errors=_KEEP_BYTES).splitlines()

    def _write(self, lines: Sequence[str]) -> None:
        partial = self.path.with_name(self.path.name + ".new")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors=_KEEP_BYTES) as file:
            file.writelines(f"{line}\n" for line in lines)
        partial.replace(self.path)

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


def published_keys(api: TpuApi, node: Node, *, with_names: bool = False) -> list[KnownHost]:
    """Return the host keys that a READY TPU's workers have published.

    One request reads the keys of all workers. If the response does not have one entry for each
    worker, each worker's keys are requested separately. With ``with_names``, also reads the guests'
    host names.
    """
    path = "" if with_names else _HOST_KEYS_PATH
    workers = len(node.endpoints)
    attributes = api.guest_attributes(node.zone, node.name, path)
    if len(attributes) != workers:
        attributes = [_worker_attributes(api, node, path, worker) for worker in range(workers)]
    hosts = [
        known_host(alias_of(node.key, worker), worker_attributes)
        for worker, worker_attributes in enumerate(attributes)
    ]
    return [host for host in hosts if host]


def _worker_attributes(api: TpuApi, node: Node, path: str, worker: int) -> dict[str, str]:
    try:
        attributes = api.guest_attributes(node.zone, node.name, path, [worker])
    except CloudError:
        return {}  # for a worker without published attributes, the API may return an error
    return attributes[0] if attributes else {}


def remember_host_keys(
    read_keys: Callable[[], Iterable[KnownHost]],
    node: Node,
    known_hosts_file: str,
    polling: Polling,
    progress: Progress = lambda _text: None,
) -> list[str]:
    """Store the workers' host keys once they are published; return warnings about missing keys.

    Args:
        read_keys: returns the keys published so far. It is called repeatedly, also after it has
            raised NotFound, NoAnswer or Unavailable.
        polling: the clock, and the pauses between reads.
        progress: receives a text that says what this function waits for.
    """
    file = KnownHostsFile(known_hosts_file)
    deadline = polling.deadline_in(HOST_KEYS_TIMEOUT_S)
    for pauses in itertools.count():
        missing = workers_without_keys(node, file.read())
        if missing:
            # These errors are no reason to stop: the workers may publish their keys later.
            with suppress(NotFound, NoAnswer, Unavailable):
                file.add(read_keys())
            missing = workers_without_keys(node, file.read())
        if not missing:
            return []
        progress("waiting for the ssh host keys")
        try:
            polling.pause("read the host keys", _SLOW_PAUSE + pauses, deadline)
        except DeadlineExceeded:
            return [
                f"worker {worker} of TPU {node.where} published no ssh host keys"
                for worker in missing
            ]


def workers_without_keys(node: Node, known: Mapping[str, KnownHost]) -> list[int]:
    """Return the numbers of the TPU's workers without a key in ``known`` (host keys by alias)."""
    return [
        worker for worker in range(len(node.endpoints)) if alias_of(node.key, worker) not in known
    ]


def ssh_options(known_hosts: str, alias: str, *, accept_new: bool) -> str:
    """Return ssh options that check a worker's host key against the fleet's known_hosts file.

    With ``accept_new``, ssh stores the key of a worker that the file does not have yet.
    """
    path = str(Path(known_hosts).expanduser())
    if re.search(r"[^A-Za-z0-9_./+,:@\-]", path):
        # Quote the path twice: Ansible splits the returned options like a shell, and ssh splits the
        # value of the option and expands percent signs in it.
        path = "'\"" + path.replace("%", "%%").replace("'", "'\\''") + "\"'"
    strict = "accept-new" if accept_new else "yes"
    return (
        f"-o HostKeyAlias={alias} -o UserKnownHostsFile={path} "
        f"-o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking={strict}"
    )
