"""The list of a cloud's machines and their addresses, stored as files; used by all machine kinds.

Each machine has a directory in the cloud's ``machines`` directory, with the files ``address``
(internal) and ``external``. Both are written atomically, because other threads read them and the
server may be killed at any time.
"""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from localcloud.machines import mounts, network
from localcloud.machines.interface import MachineError, MachineSpec, SweepError
from localcloud.place import Place


@dataclass
class Roster:
    """The list of one cloud's machines; publishes their addresses to the name server and NAT."""

    place: Place
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def directory(self, name: str) -> Path:
        """Return the path of the machine's directory, whether or not it exists."""
        return self.place.machines / name

    def names(self) -> set[str]:
        """Return the names of all machines that have a directory, also partly created ones."""
        return {entry.name for entry in self.place.machines.glob("*")}

    def knows(self, name: str) -> bool:
        """Return whether ``enter`` was called for the machine, so that its files are complete."""
        return (self.directory(name) / "address").exists()

    def enter(self, spec: MachineSpec) -> None:
        """Add a machine to the list; call it when the machine's files are complete."""
        _write(self.directory(spec.name) / "address", spec.address)

    def publish(self, spec: MachineSpec | None = None) -> None:
        """Update the name server and NAT with the names and addresses of all machines.

        Records the external address of ``spec`` first, if given.
        """
        with self._lock:
            if spec is not None:
                external = self.directory(spec.name) / "external"
                _write(external, spec.external or spec.address)
            names, outside = {}, {}
            for file in self.place.machines.glob("*/address"):
                with contextlib.suppress(FileNotFoundError):  # deleted by another thread
                    own = names[file.parent.name] = _read(file)
                    if (external_address := _read(file.with_name("external"))) != own:
                        outside[external_address] = own
            if self.place.directory.exists():
                network.publish_names(self.place, names)
            network.publish_outside(self.place, outside)

    def remove(self, name: str) -> None:
        """Remove a machine's directory, name and addresses; call it when the machine is off."""
        directory = self.directory(name)
        if left := mounts.below(directory):
            raise MachineError(f"{name}: {left[0]} cannot be unmounted, so nothing was removed")
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            shutil.rmtree(directory)
        self.publish()

    def console_tail(self, name: str) -> str:
        """Return a phrase with the last line of the machine's console, for error messages."""
        console = self.directory(name) / "console.log"
        lines = console.read_text(errors="replace").splitlines() if console.exists() else []
        written = [line.strip() for line in lines if line.strip()]
        return f"the last line of {console} is: {written[-1] if written else '(empty)'}"


def delete_all(names: Iterable[str], delete: Callable[[str], None]) -> list[str]:
    """Call ``delete`` for each machine and return their names.

    Tries all machines, then raises SweepError if some could not be deleted.
    """
    strays, left = sorted(names), {}
    for name in strays:
        try:
            delete(name)
        except (MachineError, OSError) as error:
            left[name] = f"{name}: {error}"
    if left:
        raise SweepError(left)
    return strays


def _write(file: Path, address: IPv4Address) -> None:
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(f"{address}\n")
    partial.rename(file)


def _read(file: Path) -> IPv4Address:
    return IPv4Address(file.read_text().strip())
