"""Where a local cloud lives on this computer, and the names that its things carry."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from localcloud.failure import CloudError

PROJECT_ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?")


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
                f"a cloud's name is lower-case letters, digits and dashes, not {name!r}: "
                "python -m localcloud --name my-cloud up"
            )
        return cls(name, clouds_directory() / name)

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
        """What every machine sees as ``/mnt/shared``."""
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


def clouds_directory() -> Path:
    """Give the directory that holds every local cloud of this checkout, and their images."""
    return Path(os.environ.get("TPUFLEET_LOCALCLOUD_DIR") or PROJECT_ROOT / ".localcloud").resolve()


def images_directory() -> Path:
    """Give the cache of root file systems, shared by the clouds of this checkout."""
    return clouds_directory() / "images"
