"""A server process that tests kill: ``killable_server.py STATE PORT DELAY``.

Its machines are directories, which survive a kill like real machines. Each start or deletion of a
machine takes DELAY seconds.
"""

import signal
import sys
import time
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from localcloud.api import create_server
from localcloud.machines.interface import MACHINE_FAULTS, DataDisk, MachineFault, MachineSpec


class MachinesOnDisk:
    """Machines as directories. A machine is running if its directory contains ``booted``."""

    def __init__(self, directory: Path, delay: float) -> None:
        self._directory = directory
        self._delay = delay
        directory.mkdir(parents=True, exist_ok=True)

    def start(self, spec: MachineSpec) -> None:
        home = self._directory / spec.name
        home.mkdir(exist_ok=True)
        time.sleep(self._delay)
        (home / "booted").write_text(str(spec.address))

    def power_off(self, name: str) -> None:
        (self._directory / name / "booted").unlink(missing_ok=True)

    def shut_down(self, name: str) -> None:
        self.power_off(name)

    def inject(self, name: str, fault: MachineFault) -> None:
        (self._directory / name / fault).touch()

    def clear(self, name: str, fault: MachineFault) -> None:
        (self._directory / name / fault).unlink(missing_ok=True)

    def faults(self, name: str) -> Collection[MachineFault]:
        return [fault for fault in MACHINE_FAULTS if (self._directory / name / fault).exists()]

    def delete(self, name: str) -> None:
        home = self._directory / name
        time.sleep(self._delay)
        (home / "booted").unlink(missing_ok=True)
        if home.exists():
            home.rmdir()

    def set_disks(self, name: str, disks: tuple[DataDisk, ...]) -> None:
        """Do nothing: these machines have no disks."""

    def forget_disk(self, zone: str, name: str) -> None:
        """Do nothing: these machines have no disks."""

    def alive(self, name: str) -> bool:
        return (self._directory / name / "booted").exists()

    def host_keys(self, name: str) -> Mapping[str, str]:
        return {}

    def addresses(self) -> list[IPv4Address]:
        return list(IPv4Network("10.77.0.0/24").hosts())

    def sweep(self, keep: Collection[str]) -> list[str]:
        unknown = sorted({home.name for home in self._directory.iterdir()} - set(keep))
        for name in unknown:
            self.delete(name)
        return unknown


def main(state: Path, port: int, delay: float) -> None:
    server = create_server(state, MachinesOnDisk(state / "machines", delay), port)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.recover()
    server.serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
