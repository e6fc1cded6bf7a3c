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
    """One local cloud's directory; all names of the cloud's host resources are derived from it."""

    name: str
    directory: Path

    @classmethod
    def of(cls, name: str) -> "Place":
        """Return the Place of the cloud ``name``, below ``TPUFLEET_LOCALCLOUD_DIR``."""
        if not NAME.fullmatch(name):
            raise CloudError(
                f"--name: a cloud's name is 1 to 32 lower-case letters, digits and dashes "
                f"({name!r}). Choose another, such as: --name my-cloud"
            )
        return cls(name, clouds_directory() / name)

    def command(self, *words: str) -> str:
        """Return the shell command that runs a verb of ``python -m localcloud`` on this cloud.

        ``words`` are the verb and its arguments. The command includes the cloud's name and
        directory unless they are the defaults, and ``sudo`` if the verb needs root and the user is
        not root.
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
        """Return the shell command that runs a playbook on this cloud.

        ``words`` are the playbook and its arguments.
        """
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
        """Eight hex digits that make the names of this cloud's host resources unique."""
        return hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]

    @property
    def bridge(self) -> str:
        """The name of the network bridge; Linux allows at most 15 characters."""
        return f"tpf{self.tag}"

    @property
    def nft_table(self) -> str:
        """The name of the nftables table with the network's NAT and firewall rules."""
        return f"tpufleet_{self.tag}"

    @property
    def nft_outside_table(self) -> str:
        """The name of the nftables table that maps external addresses to machines."""
        return f"{self.nft_table}_outside"

    @property
    def nft_metadata_table(self) -> str:
        """The name of the nftables table that redirects requests to the metadata server."""
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
        """The text file with the API's address; it exists while the cloud is up."""
        return self.directory / "endpoint"

    @property
    def hosts(self) -> Path:
        """The hosts file of the name server, with the machines' names and addresses."""
        return self.directory / "hosts"

    @property
    def machines(self) -> Path:
        """The directory that contains one directory per machine."""
        return self.directory / "machines"

    @property
    def shared(self) -> Path:
        """The directory mounted as ``/mnt/shared`` in all machines, if they share it."""
        return self.directory / "shared"

    @property
    def disks(self) -> Path:
        """The directory of the data disks' files, with one subdirectory per zone."""
        return self.directory / "disks"

    @property
    def bucket(self) -> Path:
        """The directory of the buckets' objects, with one subdirectory per bucket."""
        return self.directory / "bucket"

    @property
    def bucket_endpoint(self) -> Path:
        """The text file with the address of the cloud's bucket; missing if there is no bucket."""
        return self.directory / "bucket-endpoint"

    @property
    def bucket_log(self) -> Path:
        """The log file of the bucket's processes."""
        return self.directory / "bucket.log"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.directory / "server.log"

    @property
    def lock(self) -> Path:
        """The lock file that the server holds while it runs."""
        return self.directory / "state.lock"


def clouds_directory() -> Path:
    """Return the directory that contains all local clouds of this checkout and their images."""
    return Path(os.environ.get("TPUFLEET_LOCALCLOUD_DIR") or _DEFAULT_CLOUDS).resolve()


def images_directory() -> Path:
    """Return the directory that contains the cached root file systems."""
    return clouds_directory() / "images"
