"""The list of a cloud's machines with their addresses, as files; shared by all kinds of machine.

Each machine has a directory below the cloud's ``machines``, with the files ``address`` and
``external``. Both are written atomically: other machines' threads read them, and the server may be
killed at any moment.
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
    """One cloud's machines, whose addresses it publishes to the name server and NAT."""

    place: Place
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def directory(self, name: str) -> Path:
        """Return the machine's directory, which may not exist."""
        return self.place.machines / name

    def names(self) -> set[str]:
        """Return the names of all machines that have a directory, whole or partial."""
        return {entry.name for entry in self.place.machines.glob("*")}

    def knows(self, name: str) -> bool:
        """Return whether the machine was entered, after its own files were created."""
        return (self.directory(name) / "address").exists()

    def enter(self, spec: MachineSpec) -> None:
        """Record the machine's address, once its own files are created."""
        _write(self.directory(spec.name) / "address", spec.address)

    def publish(self, spec: MachineSpec | None = None) -> None:
        """Publish all names and external addresses; first record that of ``spec``."""
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
        """Remove the directory of a machine that is off, and unpublish its addresses."""
        directory = self.directory(name)
        if left := mounts.below(directory):
            raise MachineError(f"{name}: {left[0]} cannot be unmounted, so nothing was removed")
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            shutil.rmtree(directory)
        self.publish()

    def console_tail(self, name: str) -> str:
        """Return the last line of the machine's console, for an error message."""
        console = self.directory(name) / "console.log"
        lines = console.read_text(errors="replace").splitlines() if console.exists() else []
        written = [line.strip() for line in lines if line.strip()]
        return f"the last line of {console} is: {written[-1] if written else '(empty)'}"


def delete_all(names: Iterable[str], delete: Callable[[str], None]) -> list[str]:
    """Delete machines and return their names; raise SweepError at the end if some remain."""
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
