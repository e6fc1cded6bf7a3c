"""Where a local cloud lives on this computer, and the names that its things carry."""

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcloud.failure import CloudError

PROJECT_ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?")
DEFAULT_NAME = "default"
_DEFAULT_CLOUDS = PROJECT_ROOT / ".localcloud"
_NEEDS_ROOT = ("up", "down", "clean", "bucket")


@dataclass(frozen=True)
class Place:
    """One local cloud's directory. All that the cloud owns is found again from this path alone."""

    name: str
    directory: Path

    @classmethod
    def of(cls, name: str) -> "Place":
        """Find the place of the cloud ``name``; ``TPUFLEET_LOCALCLOUD_DIR`` holds all of them."""
        if not NAME.fullmatch(name):
            raise CloudError(
                f"--name: a cloud's name is 1 to 32 lower-case letters, digits and dashes "
                f"({name!r}). Choose another, such as: --name my-cloud"
            )
        return cls(name, clouds_directory() / name)

    def command(self, *words: str) -> str:
        """Return the command line that does ``words`` to this cloud, as the reader has to type it.

        It names the cloud and its directory where they are not the default, and ``sudo`` where
        the verb needs root and the reader's shell has none.
        """
        command = [".venv/bin/python", "-m", "localcloud"]
        if self.name != DEFAULT_NAME:
            command += ["--name", self.name]
        environment = self._environment()
        if words[0] in _NEEDS_ROOT and (os.geteuid() != 0 or "SUDO_UID" in os.environ):
            command = ["sudo", *(["env", *environment] if environment else []), *command]
        else:
            command = [*environment, *command]
        return _typed(command, words)

    def playbook(self, *words: str) -> str:
        """Return the command line that runs a playbook (the first word) on this cloud."""
        environment = self._environment()
        if self.name != DEFAULT_NAME:
            environment.append(f"TPUFLEET_LOCALCLOUD={self.name}")
        command = [".venv/bin/ansible-playbook", "-i", "inventory/local"]
        return _typed([*environment, *command], words)

    def _environment(self) -> list[str]:
        clouds = self.directory.parent
        return (
            []
            if clouds == _DEFAULT_CLOUDS
            else [f"TPUFLEET_LOCALCLOUD_DIR={shlex.quote(str(clouds))}"]
        )

    @property
    def tag(self) -> str:
        """Eight hex digits that mark this cloud's bridge, table, scopes and units on the host."""
        return hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]

    @property
    def bridge(self) -> str:
        """The network device's name; Linux allows 15 characters."""
        return f"tpf{self.tag}"

    @property
    def nft_table(self) -> str:
        """The firewall table's name."""
        return f"tpufleet_{self.tag}"

    @property
    def nft_outside_table(self) -> str:
        """The name of the table for machines' external addresses."""
        return f"{self.nft_table}_outside"

    @property
    def nft_metadata_table(self) -> str:
        """The name of the table that leads machines to their metadata server."""
        return f"{self.nft_table}_metadata"

    @property
    def unit_prefix(self) -> str:
        """What the names of this cloud's systemd units and control groups begin with."""
        return f"tpufleet-{self.tag}"

    @property
    def settings(self) -> Path:
        """``cloud.json``: what ``up`` chose (port, subnet) and ``down`` must undo."""
        return self.directory / "cloud.json"

    @property
    def endpoint(self) -> Path:
        """A text file with the API's address, there while the cloud is up."""
        return self.directory / "endpoint"

    @property
    def hosts(self) -> Path:
        """The name server's table of machines, in the form of ``/etc/hosts``."""
        return self.directory / "hosts"

    @property
    def machines(self) -> Path:
        """One directory a machine."""
        return self.directory / "machines"

    @property
    def shared(self) -> Path:
        """What every machine sees as ``/mnt/shared``, unless each has a directory of its own."""
        return self.directory / "shared"

    @property
    def disks(self) -> Path:
        """The data disks' files, one directory a zone."""
        return self.directory / "disks"

    @property
    def bucket(self) -> Path:
        """What the buckets hold, one directory a bucket."""
        return self.directory / "bucket"

    @property
    def bucket_endpoint(self) -> Path:
        """A text file with the address of the cloud's bucket, if it has one."""
        return self.directory / "bucket-endpoint"

    @property
    def bucket_log(self) -> Path:
        """What the bucket's processes say."""
        return self.directory / "bucket.log"

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.directory / "server.log"

    @property
    def lock(self) -> Path:
        """Held by the server while it lives."""
        return self.directory / "state.lock"


def _typed(command: list[str], words: Sequence[str]) -> str:
    return " ".join([*command, shlex.join(words)])


def clouds_directory() -> Path:
    """Give the directory that holds every local cloud of this checkout, and their images."""
    return Path(os.environ.get("TPUFLEET_LOCALCLOUD_DIR") or _DEFAULT_CLOUDS).resolve()


def images_directory() -> Path:
    """Give the cache of root file systems, shared by the clouds of this checkout."""
    return clouds_directory() / "images"
