"""A local cloud's API server, which tests run in its own process and kill.

Its machines are directories, which survive a kill like real machines. Each start or deletion of a
machine takes ``delay`` seconds.
"""

import signal
import time
from collections.abc import Collection
from pathlib import Path

from localcloud.api.server import create_server
from localcloud.machines.interface import MachineSpec
from tests.localcloud.api.machines_in_memory import MachinesInMemory


class MachinesOnDisk(MachinesInMemory):
    """Machines as directories. A machine is running if its directory contains ``booted``."""

    def __init__(self, directory: Path, delay: float) -> None:
        super().__init__()
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

    def delete(self, name: str) -> None:
        home = self._directory / name
        time.sleep(self._delay)
        (home / "booted").unlink(missing_ok=True)
        if home.exists():
            home.rmdir()

    def alive(self, name: str) -> bool:
        return (self._directory / name / "booted").exists()

    def sweep(self, keep: Collection[str]) -> list[str]:
        unknown = sorted({home.name for home in self._directory.iterdir()} - set(keep))
        for name in unknown:
            self.delete(name)
        return unknown


def serve(state: Path, port: int, delay: float) -> None:
    """Serve until SIGTERM."""
    server = create_server(state, MachinesOnDisk(state / "machines", delay), port)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.recover()
    server.serve()
