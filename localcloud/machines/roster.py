"""Which machines a cloud has and where they are, as files beside them: what every kind shares.

Each machine has a directory below the cloud's ``machines``, with its ``address`` and, while it is
reached by another from this computer, its ``external`` one. Both are written in one step, since
other machines' threads read them and a kill may come at any moment.
"""

import contextlib
import threading
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from localcloud.machines import network
from localcloud.machines.seam import MachineSpec
from localcloud.place import Place


@dataclass
class Roster:
    """The addresses of one cloud's machines, published to its name server and its NAT."""

    place: Place
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def directory(self, name: str) -> Path:
        """Give the machine's directory, whether or not it is there."""
        return self.place.machines / name

    def names(self) -> set[str]:
        """Name every machine that has a directory, whole or half-made."""
        return {entry.name for entry in self.place.machines.glob("*")}

    def knows(self, name: str) -> bool:
        """Tell whether the machine was entered: what is the machine's own was made."""
        return (self.directory(name) / "address").exists()

    def enter(self, spec: MachineSpec) -> None:
        """Write down that the machine is made, and its address."""
        _write(self.directory(spec.name) / "address", spec.address)

    def publish(self, spec: MachineSpec | None = None) -> None:
        """Publish names and external addresses as they are; ``spec``'s external one may be new."""
        with self._lock:
            if spec is not None:
                external = self.directory(spec.name) / "external"
                _write(external, spec.external or spec.address)
            names, outside = {}, {}
            for file in self.place.machines.glob("*/address"):
                with contextlib.suppress(FileNotFoundError):  # another thread has deleted it since
                    own = names[file.parent.name] = _read(file)
                    if (external_address := _read(file.with_name("external"))) != own:
                        outside[external_address] = own
            if self.place.directory.exists():
                network.publish_names(self.place, names)
            network.publish_outside(self.place, outside)

    def last_words(self, name: str) -> str:
        """Quote the end of the machine's console, for an error."""
        console = self.directory(name) / "console.log"
        lines = console.read_text(errors="replace").splitlines() if console.exists() else []
        said = [line.strip() for line in lines if line.strip()]
        return f"the last line of {console} is: {said[-1] if said else '(empty)'}"


def _write(file: Path, address: IPv4Address) -> None:
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(f"{address}\n")
    partial.rename(file)


def _read(file: Path) -> IPv4Address:
    return IPv4Address(file.read_text().strip())
