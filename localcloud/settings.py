"""A cloud's settings, stored in ``cloud.json`` so that they stay the same after a restart."""

import json
import os
from dataclasses import asdict, dataclass

from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud, write_atomically

MNT_SHARED = ("shared", "local")


@dataclass(frozen=True)
class Settings:
    """The settings of one local cloud."""

    name: str
    port: int
    subnet: str
    image: str
    # The kind of machine: one of machines.kinds.KINDS.
    machines: str = "nspawn"
    # The Debian release of the machines; empty: the default for this host.
    suite: str = ""
    # One of MNT_SHARED: all machines share one /mnt/shared, or each machine has its own.
    mnt_shared: str = "shared"

    @property
    def endpoint(self) -> str:
        """The API's base URL."""
        return f"http://127.0.0.1:{self.port}"


def read(cloud: LocalCloud) -> Settings:
    """Return the cloud's settings; raise CloudError if the cloud was never started."""
    try:
        return Settings(**json.loads(cloud.settings.read_text()))
    except FileNotFoundError:
        raise CloudError(
            f"local cloud {cloud.name!r} is not up. Start it: {cloud.command('up')}"
        ) from None
    except PermissionError as error:
        raise CloudError(
            f"{cloud.settings} can't be read ({error.strerror}): another user started the cloud. "
            "Run the same command with sudo"
        ) from error


def write(cloud: LocalCloud, settings: Settings) -> None:
    """Write the settings atomically."""
    write_atomically(cloud.settings, json.dumps(asdict(settings), indent=2) + "\n")


def hand_over(cloud: LocalCloud) -> None:
    """Make the user who called sudo the owner of the files that clients need.

    The machines' files still belong to root.
    """
    if not (uid := os.environ.get("SUDO_UID")):
        return
    owner = int(uid), int(os.environ["SUDO_GID"])
    for path in (
        cloud.directory.parent,
        cloud.directory,
        cloud.settings,
        cloud.endpoint,
        cloud.bucket_endpoint,
        cloud.directory / "service-account.json",
    ):
        if path.exists():
            os.chown(path, *owner)
