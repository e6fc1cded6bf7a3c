"""What ``up`` chose for a cloud, kept in its ``cloud.json`` so that a restart chooses the same."""

import json
import os
from dataclasses import asdict, dataclass

from localcloud.failure import CloudError
from localcloud.place import Place

PROJECT = "local-fleet"
MNT_SHARED = ("shared", "local")


@dataclass(frozen=True)
class Settings:
    """The choices; ``subnet`` and ``image`` as text, so that the file reads as it is written."""

    name: str
    port: int
    subnet: str
    image: str
    project: str = PROJECT
    machines: str = "nspawn"  # their kind: one of machines.kinds.KINDS
    suite: str = ""  # the release that they are of; the host's default if empty
    mnt_shared: str = "shared"  # one of MNT_SHARED: one directory for all machines, or one each

    @property
    def endpoint(self) -> str:
        """The API's address."""
        return f"http://127.0.0.1:{self.port}"


def read(place: Place) -> Settings:
    """Read the settings; raises CloudError where no cloud was ever up."""
    try:
        return Settings(**json.loads(place.settings.read_text()))
    except FileNotFoundError:
        raise CloudError(
            f"local cloud {place.name!r} is not up. Start it: {place.command('up')}"
        ) from None


def write(place: Place, settings: Settings) -> None:
    """Write the settings in one step."""
    partial = place.settings.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(settings), indent=2) + "\n")
    partial.rename(place.settings)


def hand_over(place: Place) -> None:
    """Give what a client of the cloud uses to the person behind sudo; the machines stay root's."""
    if not (uid := os.environ.get("SUDO_UID")):
        return
    owner = int(uid), int(os.environ["SUDO_GID"])
    for path in (
        place.directory.parent,
        place.directory,
        place.endpoint,
        place.directory / "service-account.json",
    ):
        if path.exists():
            os.chown(path, *owner)
