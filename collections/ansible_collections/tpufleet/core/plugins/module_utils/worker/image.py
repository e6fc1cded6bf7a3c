"""An unpacked container image on this worker, and the settings of units that run trainers in it.

No container engine runs the trainer. The unit mounts directories of the worker into the directory
of the image's files, in a private mount namespace. Then the program roles/run/files/attempt makes
that directory its root directory and starts the trainer, which is an ordinary process of the unit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from .contract import IMAGE
from .launch_spec import VARIABLE, is_text
from .run import RunError, WorkerPaths
from .safe_files import parent_of, read_json

CONFIG = "image.json"
"""Name of the file with an image's working directory and environment variables.

It is beside the directory of the image's files. It is written last, so an image without it is
incomplete.
"""
RSYNC_MODULE = "images"
"""Name of the directory with the images, in ``WorkerPaths.root``.

The rsync module in which the leader serves this directory has the same name.
"""
MOUNTINFO = Path("/proc/self/mountinfo")
_WORKER_PATHS = ("/dev", "/etc/hosts", "/etc/resolv.conf", "/mnt", "/proc", "/sys", "/tmp")  # noqa: S108
_SYSTEM_DIRECTORIES = ("boot", "dev", "etc", "proc", "run", "snap", "sys", "tmp", "usr", "var")
_IMAGE_DIRECTORIES = (
    "/",
    "/home",
    "/opt",
    "/root",
    "/srv",
    *(f"/{name}" for name in _SYSTEM_DIRECTORIES),
)
"""Directories of an image on which no data disk and no path of a run is mounted: such a mount would
hide the image's files."""
_MOUNTABLE = re.compile(r"/[A-Za-z0-9._/=@+,~-]+")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_TEXT = 1 << 16


@dataclass(frozen=True)
class Image:
    """An unpacked image.

    Args:
        root: the directory with the image's files.
        directory: the working directory of the image's commands, a path in the image.
        env: the environment variables that the image's config sets.
    """

    root: Path
    directory: str
    env: Mapping[str, str]

    @classmethod
    def of_engine(cls, root: Path, inspected: object) -> Image:
        """Return the image that a container engine describes (``podman image inspect``).

        Raises ValueError.
        """
        description = inspected[0] if isinstance(inspected, list) and inspected else None
        config = description.get("Config") if isinstance(description, Mapping) else None
        if not isinstance(config, Mapping):
            raise ValueError("the container engine reports no config of the image")
        pairs = [str(line).partition("=") for line in config.get("Env") or []]
        env = {name: value for name, _, value in pairs if VARIABLE.fullmatch(name)}
        return cls.parse(root, {"env": env, "directory": config.get("WorkingDir") or "/"})

    @classmethod
    def parse(cls, root: Path, config: Mapping[str, Any]) -> Image:
        """Validate the content of ``image.json``. Raises ValueError."""
        env, directory = config.get("env"), config.get("directory")
        if not isinstance(env, Mapping) or not all(
            VARIABLE.fullmatch(name) and is_text(value, _MAX_TEXT) for name, value in env.items()
        ):
            raise ValueError("its config has an invalid environment variable")
        is_path = is_text(directory, _MAX_TEXT) and directory.startswith("/")
        if not is_path or ".." in PurePath(directory).parts:
            raise ValueError("its config has an invalid working directory")
        return cls(root, directory, dict(env))

    @classmethod
    def read(cls, folder: Path) -> Image | None:
        """Return the image whose directory is ``folder``; None if it is missing or incomplete."""
        config = read_json(folder / CONFIG)
        try:
            return None if config is None else cls.parse(folder / "root", config)
        except ValueError:
            return None

    def config(self) -> dict[str, Any]:
        """Return the content of ``image.json``."""
        return {"directory": self.directory, "env": dict(self.env)}

    def path(self, paths: WorkerPaths) -> str:
        """Return a trainer's PATH: the image's PATH, then the directory of tpufleet's programs."""
        return f"{self.env.get('PATH') or _DEFAULT_PATH}:{paths.programs}"

    def for_attempt(self, unit_variables: Mapping[str, str]) -> dict[str, Any]:
        """Return what the program roles/run/files/attempt needs to start a trainer in the image.

        The result has the image's environment variables, except those that the run's unit sets
        (``unit_variables``). The program sets them for the trainer only. In the unit, they would
        also affect programs that run outside the image, where the paths in variables such as
        LD_LIBRARY_PATH name other files.
        """
        env = {name: value for name, value in self.env.items() if name not in unit_variables}
        return {"root": str(self.root), "directory": self.directory, "env": env}


def image_folder(paths: WorkerPaths, reference: str) -> Path:
    """Return the directory of an image on this worker. Its name is the image's digest.

    ``reference`` is ``REGISTRY/NAME@sha256:DIGEST``. Raises ValueError.
    """
    match = IMAGE.fullmatch(reference)
    if not match:
        raise ValueError(f"image {reference!r}: expected REGISTRY/NAME@sha256:DIGEST")
    return paths.root / RSYNC_MODULE / match["digest"]


def unit_settings(image: Image, paths: WorkerPaths, local_paths: Iterable[str]) -> str:
    """Return a systemd drop-in of a run's unit that mounts the worker's directories into the image.

    The drop-in mounts the worker's devices, /proc, /sys, /tmp, host names and DNS settings,
    tpufleet's directories, everything that is mounted outside the system's directories, and
    ``local_paths``, the other local paths that the run uses. Creates missing mount points in the
    image. Raises RunError.
    """
    own_paths = (str(paths.programs), str(paths.root / "releases"), str(paths.state))
    mounted = data_mounts(MOUNTINFO.read_text(encoding="utf-8", errors="replace"))
    # os.path.exists, unlike Path.exists, returns False for a mount that root cannot read.
    base_paths = {path for path in (*_WORKER_PATHS, *own_paths, *mounted) if os.path.exists(path)}  # noqa: PTH110
    others = [nearest_directory(path) for path in local_paths if not _is_below(path, base_paths)]
    shared = outermost((*base_paths, *others))
    lines = [f"BindPaths={path}:{mount_point(image.root, path)}" for path in shared]
    # `attempt` needs CAP_SYS_CHROOT to change its root directory. It gives the capability up before
    # the trainer starts, and NoNewPrivileges keeps programs of the image from regaining it.
    privileges = ["AmbientCapabilities=CAP_SYS_CHROOT", "NoNewPrivileges=yes"]
    return "\n".join(["[Service]", *privileges, *lines, ""])


def data_mounts(mountinfo: str) -> list[str]:
    """Return the mount points outside the system's directories (proc_pid_mountinfo(5)).

    ``mountinfo`` is the text of /proc/self/mountinfo.
    """
    mount_points = [line.split()[4] for line in mountinfo.splitlines() if line.count(" ") > 4]
    return [
        path
        for path in mount_points
        if _MOUNTABLE.fullmatch(path)
        and PurePath(path).parts[1] not in _SYSTEM_DIRECTORIES
        and path not in _IMAGE_DIRECTORIES
    ]


def nearest_directory(path: str) -> str:
    """Return ``path`` if it is a directory, else the nearest directory above it.

    Raises RunError if that directory cannot be mounted into an image.
    """
    target = Path(path)
    # os.path.isdir, unlike Path.is_dir, returns False for a mount that root cannot read.
    directory = next(folder for folder in (target, *target.parents) if os.path.isdir(folder))  # noqa: PTH112
    if str(directory) in _IMAGE_DIRECTORIES:
        reason = f"it would hide {directory} of the image"
    elif not _MOUNTABLE.fullmatch(str(directory)):
        reason = "systemd does not accept its name"
    else:
        try:
            # systemd would follow links in the path. parent_of refuses, with OSError, links that an
            # untrusted user may have made.
            with parent_of(directory / "_"):
                return str(directory)
        except OSError as error:
            reason = str(error.strerror)
    raise RunError(
        f"{path}: it cannot be mounted into the image ({reason}). Choose a directory below /mnt, "
        "or a bucket: ansible-playbook train.yml -e checkpoints=gs://BUCKET/PREFIX"
    )


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the outermost of ``paths``: a directory's mount includes all paths below it."""
    all_paths = set(paths)
    return sorted(path for path in all_paths if not _is_below(path, all_paths))


def _is_below(path: str, folders: Collection[str]) -> bool:
    return any(str(parent) in folders for parent in PurePath(path).parents)


def mount_point(root: Path, path: str) -> Path:
    """Return the path in an image at which a worker's path is mounted; create it if missing.

    Raises RunError if a part of the path is a link in the image, because the mount would follow the
    link. Also raises RunError if the path is a file on the worker and a directory in the image, or
    the reverse.
    """
    parts, target = PurePath(path).parts[1:], root
    for number, name in enumerate(parts, 1):
        target = target / name
        is_file = number == len(parts) and not Path(path).is_dir()
        if is_file and (target.is_symlink() or not target.exists()):
            target.unlink(missing_ok=True)
            target.touch(0o644)
        elif not target.is_symlink() and not target.exists():
            target.mkdir(0o755)
        if target.is_symlink() or target.is_dir() == is_file:
            kind = "file" if is_file else "directory"
            raise RunError(
                f"{path} in the image must be a {kind} or missing, but is something else. "
                "Build an image without it"
            )
    return target
