"""A local cloud's directory on this computer, and the names of its host resources."""

import hashlib
import os
import re
import shlex
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
    """One local cloud's directory, from which everything that the cloud owns can be found."""

    name: str
    directory: Path

    @classmethod
    def of(cls, name: str) -> "Place":
        """Return the place of the cloud ``name`` in ``TPUFLEET_LOCALCLOUD_DIR``."""
        if not NAME.fullmatch(name):
            raise CloudError(
                f"--name: a cloud's name is 1 to 32 lower-case letters, digits and dashes "
                f"({name!r}). Choose another, such as: --name my-cloud"
            )
        return cls(name, clouds_directory() / name)

    def command(self, *words: str) -> str:
        """Return the shell command that runs the verb ``words`` on this cloud.

        It includes the cloud's name and directory where they are not the default, and ``sudo``
        if the verb needs root and the user is not root.
        """
        command = [".venv/bin/python", "-m", "localcloud"]
        if self.name != DEFAULT_NAME:
            command += ["--name", self.name]
        environment = self._environment()
        if words[0] in _NEEDS_ROOT and (os.geteuid() != 0 or "SUDO_UID" in os.environ):
            command = ["sudo", *(["env", *environment] if environment else []), *command]
        else:
            command = [*environment, *command]
        return " ".join([*command, shlex.join(words)])

    def playbook(self, *words: str) -> str:
        """Return the command line that runs a playbook (the first word) on this cloud."""
        environment = self._environment()
        if self.name != DEFAULT_NAME:
            environment.append(f"TPUFLEET_LOCALCLOUD={self.name}")
        command = [".venv/bin/ansible-playbook", "-i", "inventory/local"]
        return " ".join([*environment, *command, shlex.join(words)])

    def _environment(self) -> list[str]:
        clouds = self.directory.parent
        return (
            []
            if clouds == _DEFAULT_CLOUDS
            else [f"TPUFLEET_LOCALCLOUD_DIR={shlex.quote(str(clouds))}"]
        )

    @property
    def tag(self) -> str:
        """Eight hex digits in the names of this cloud's bridge, tables and units on the host."""
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
        """The name of the NAT table for machines' external addresses."""
        return f"{self.nft_table}_outside"

    @property
    def nft_metadata_table(self) -> str:
        """The name of the NAT table for the metadata server."""
        return f"{self.nft_table}_metadata"

    @property
    def unit_prefix(self) -> str:
        """The name prefix of this cloud's systemd units and control groups."""
        return f"tpufleet-{self.tag}"

    @property
    def settings(self) -> Path:
        """``cloud.json``: the settings that ``up`` chose."""
        return self.directory / "cloud.json"

    @property
    def endpoint(self) -> Path:
        """A text file with the API's address; exists while the cloud is up."""
        return self.directory / "endpoint"

    @property
    def hosts(self) -> Path:
        """The name server's table of machines, in the format of ``/etc/hosts``."""
        return self.directory / "hosts"

    @property
    def machines(self) -> Path:
        """One directory per machine."""
        return self.directory / "machines"

    @property
    def shared(self) -> Path:
        """The machines' ``/mnt/shared``, unless each has its own."""
        return self.directory / "shared"

    @property
    def disks(self) -> Path:
        """The data disks' files, one directory per zone."""
        return self.directory / "disks"

    @property
    def bucket(self) -> Path:
        """The buckets' objects, one directory per bucket."""
        return self.directory / "bucket"

    @property
    def bucket_endpoint(self) -> Path:
        """A text file with the address of the cloud's bucket; exists if it has one."""
        return self.directory / "bucket-endpoint"

    @property
    def bucket_log(self) -> Path:
        """The log of the bucket's processes."""
        return self.directory / "bucket.log"

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.directory / "server.log"

    @property
    def lock(self) -> Path:
        """The lock file that the server holds while it runs."""
        return self.directory / "state.lock"


def clouds_directory() -> Path:
    """Return the directory of all local clouds of this checkout and their images."""
    return Path(os.environ.get("TPUFLEET_LOCALCLOUD_DIR") or _DEFAULT_CLOUDS).resolve()


def images_directory() -> Path:
    """Return the directory of cached root file systems."""
    return clouds_directory() / "images"
