"""Fake machines that record calls, for tests of the API."""

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from localcloud.machines.interface import (
    DataDisk,
    MachineError,
    MachineFault,
    MachineSpec,
    SweepError,
)

KEY_TYPE = "ssh-ed25519"


class MachinesInMemory:
    """Machines as a dictionary of specs.

    If ``hold`` is an event, each start of a machine waits for it. ``refuse`` maps the name of a
    method (``start``, ``power_off``, ``set_disks``, ``delete``) to the number of its next calls
    that fail. ``deaf`` has the names of machines that ignore ``shut_down``.
    """

    def __init__(self, subnet: str = "10.77.0.0/24") -> None:
        self.pool = list(IPv4Network(subnet).hosts())
        self.specs: dict[str, MachineSpec] = {}
        self.running: set[str] = set()
        self.starts: list[str] = []
        self.offs: list[str] = []
        self.shut_downs: list[str] = []
        self.forgotten: list[tuple[str, str]] = []
        self.deaf: set[str] = set()
        self.suffered: dict[str, set[MachineFault]] = {}
        self.hold: threading.Event | None = None
        self.reached_hold = threading.Event()
        self.refuse: dict[str, int] = {}
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def start(self, spec: MachineSpec) -> None:
        with self._lock:
            self.starts.append(spec.name)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.hold is not None:
                self.reached_hold.set()
                self.hold.wait(30)
            self._maybe_refuse("start", spec.name)
            with self._lock:
                addresses = [
                    other.address for other in self.specs.values() if other.name != spec.name
                ]
                if spec.address in addresses:
                    raise MachineError(f"{spec.address} is in use")
                self.specs[spec.name] = spec
                self.running.add(spec.name)
        finally:
            with self._lock:
                self.at_once -= 1

    def power_off(self, name: str) -> None:
        self._maybe_refuse("power_off", name)
        with self._lock:
            self.offs.append(name)
            self.running.discard(name)

    def shut_down(self, name: str) -> None:
        with self._lock:
            if name in self.running:
                self.shut_downs.append(name)
            if name not in self.deaf:
                self.running.discard(name)

    def inject(self, name: str, fault: MachineFault) -> None:
        if name not in self.running:
            raise MachineError(f"{name} is off")
        self.suffered.setdefault(name, set()).add(fault)

    def clear(self, name: str, fault: MachineFault) -> None:
        self.suffered.get(name, set()).discard(fault)

    def faults(self, name: str) -> Collection[MachineFault]:
        return sorted(self.suffered.get(name, ()))

    def delete(self, name: str) -> None:
        self._maybe_refuse("delete", name)
        with self._lock:
            self.specs.pop(name, None)
            self.running.discard(name)

    def set_disks(self, name: str, disks: tuple[DataDisk, ...]) -> None:
        self._maybe_refuse("set_disks", name)
        self.specs[name] = replace(self.specs[name], disks=disks)

    def forget_disk(self, zone: str, name: str) -> None:
        self.forgotten.append((zone, name))

    def alive(self, name: str) -> bool:
        return name in self.running

    def host_keys(self, name: str) -> Mapping[str, str]:
        return {KEY_TYPE: f"AAAA{name}", "ecdsa-sha2-nistp256": f"BBBB{name}"}

    def addresses(self) -> list[IPv4Address]:
        return list(self.pool)

    def sweep(self, keep: Collection[str]) -> list[str]:
        unknown = sorted(set(self.specs) - set(keep))
        failures = {}
        for name in unknown:
            try:
                self.delete(name)
            except MachineError as error:
                failures[name] = str(error)
        if failures:
            raise SweepError(failures)
        return unknown

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make each start of a machine wait until the end of the ``with`` block."""
        self.hold = threading.Event()
        self.reached_hold.clear()
        try:
            yield
        finally:
            self.hold.set()

    def power_fails(self) -> None:
        """Stop all machines but keep their disks, like a reboot of the computer."""
        self.running.clear()

    def _maybe_refuse(self, verb: str, name: str) -> None:
        with self._lock:
            if self.refuse.get(verb, 0) > 0:
                self.refuse[verb] -= 1
                raise MachineError(f"{name} would not {verb}")
