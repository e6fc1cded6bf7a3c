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


@dataclass(unsafe_hash=True)
class LocalCloud:
    """A local cloud: its name, its directory, and the names of its host resources.

    The names are derived from the directory.
    """

    name: str
    directory: Path

    def __post_init__(self) -> None:
        #: Eight hex digits that make the names of this cloud's host resources unique.
        self.tag = hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]
        #: The name of the network bridge; Linux allows at most 15 characters.
        self.bridge = f"tpf{self.tag}"
        #: Names of the nftables tables: for NAT and firewall rules, for external addresses of
        #: machines, and for the redirection of requests to the metadata server.
        self.nft_table = f"tpufleet_{self.tag}"
        self.nft_external_table = f"{self.nft_table}_outside"
        self.nft_metadata_table = f"{self.nft_table}_metadata"
        #: The name prefix of this cloud's systemd units and control groups.
        self.unit_prefix = f"tpufleet-{self.tag}"
        #: The settings that ``up`` chose.
        self.settings = self.directory / "cloud.json"
        #: The API's address; the file exists while the cloud is up.
        self.endpoint = self.directory / "endpoint"
        #: The hosts file of the name server, with the machines' names and addresses.
        self.hosts = self.directory / "hosts"
        #: One directory per machine.
        self.machines = self.directory / "machines"
        #: ``/mnt/shared`` of all machines, if they share it.
        self.shared = self.directory / "shared"
        #: The data disks' files, with one subdirectory per zone.
        self.disks = self.directory / "disks"
        #: The buckets' objects, with one subdirectory per bucket.
        self.bucket = self.directory / "bucket"
        #: The address of the cloud's bucket; missing if there is no bucket.
        self.bucket_endpoint = self.directory / "bucket-endpoint"
        #: The log file of the bucket's processes.
        self.bucket_log = self.directory / "bucket.log"
        #: The server's log file.
        self.log = self.directory / "server.log"
        #: The lock file that the server holds while it runs.
        self.lock = self.directory / "state.lock"

    @classmethod
    def of(cls, name: str) -> "LocalCloud":
        """Return the cloud ``name`` in ``clouds_directory()``; raise CloudError for a bad name."""
        if not NAME.fullmatch(name):
            raise CloudError(
                f"--name: a cloud's name is 1 to 32 lower-case letters, digits and dashes "
                f"({name!r}). Choose another, such as: --name my-cloud"
            )
        if clouds_directory() / name == images_directory():
            raise CloudError(
                f"--name: {name!r} is reserved for the machines' root file systems. Choose "
                "another, such as: --name my-cloud"
            )
        return cls(name, clouds_directory() / name)

    def command(self, *arguments: str) -> str:
        """Return the shell command that runs a verb of ``python -m localcloud`` on this cloud.

        ``arguments`` are the verb and its own arguments. The command includes the cloud's name and
        directory unless they are the defaults, and ``sudo`` if the verb needs root and the user is
        not root.
        """
        command = [".venv/bin/python", "-m", "localcloud"]
        if self.name != DEFAULT_NAME:
            command += ["--name", self.name]
        environment = self._environment()
        if arguments[0] in _NEEDS_ROOT and (os.geteuid() != 0 or "SUDO_UID" in os.environ):
            command = ["sudo", *(["env", *environment] if environment else []), *command]
        else:
            command = [*environment, *command]
        return " ".join([*command, shlex.join(arguments)])

    def playbook(self, *arguments: str) -> str:
        """Return the shell command that runs a playbook on this cloud.

        ``arguments`` are the playbook and its own arguments.
        """
        environment = self._environment()
        if self.name != DEFAULT_NAME:
            environment.append(f"TPUFLEET_LOCALCLOUD={self.name}")
        command = [".venv/bin/ansible-playbook", "-i", "inventory/local"]
        return " ".join([*environment, *command, shlex.join(arguments)])

    def _environment(self) -> list[str]:
        clouds = self.directory.parent
        return (
            []
            if clouds == _DEFAULT_CLOUDS
            else [f"TPUFLEET_LOCALCLOUD_DIR={shlex.quote(str(clouds))}"]
        )


def write_atomically(file: Path, text: str) -> None:
    """Replace a file's content atomically.

    Readers see the complete old or the complete new text, even if this process is killed.
    """
    partial = file.with_name(f"{file.name}.partial-{os.getpid()}")
    partial.write_text(text)
    partial.rename(file)


def clouds_directory() -> Path:
    """Return the directory that contains all local clouds of this checkout and their images."""
    return Path(os.environ.get("TPUFLEET_LOCALCLOUD_DIR") or _DEFAULT_CLOUDS).resolve()


def images_directory() -> Path:
    """Return the directory that contains the cached root file systems."""
    return clouds_directory() / "images"
