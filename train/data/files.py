"""Input files on disk or in a bucket."""

import fnmatch
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from train.storage import UnavailableError, failure, new_directory, open_filesystem
from train.strict import ConfigError


@dataclass(frozen=True)
class BucketFile:
    """An object of a bucket, with the size in bytes and CRC-32C (base64) of its content."""

    filesystem: Any
    path: str
    size: int
    crc32c: str

    @property
    def name(self) -> str:
        """Name without the prefix."""
        return self.path.rpartition("/")[2]

    def open(self, mode: str = "r", **others: Any) -> IO[Any]:
        """Open the object for reading, as Path.open does."""
        return self.filesystem.open(self.path, mode, **others)

    def __str__(self) -> str:
        return f"gs://{self.path}"


type InputFile = Path | BucketFile


def location(path: str, key: str) -> Path | str:
    """Return a Path for a local path, and gs:// locations unchanged.

    Raises ConfigError, whose message begins with ``key``, for another scheme.
    """
    if path.startswith("gs://"):
        return path
    if "://" in path:
        raise ConfigError(f"{key}: must be a path or gs://bucket/name, not {path}")
    return Path(path).expanduser()


def find(pattern: str, key: str) -> list[InputFile]:
    """List the files that match a path or glob pattern, sorted.

    Raises ConfigError if no file matches or one cannot be read, and the error of ``failure`` if the
    bucket cannot be listed. Messages begin with ``key``.
    """
    path = location(pattern, key)
    found = _in_bucket(path, key) if isinstance(path, str) else _on_disk(path, key)
    if not found:
        raise ConfigError(f"{key}: no file matches {pattern}")
    for file in found:
        if isinstance(file, Path) and not os.access(file, os.R_OK):
            raise ConfigError(f"{key}: {file} cannot be read")
    return found


def _on_disk(path: Path, key: str) -> list[InputFile]:
    try:
        if path.is_file():
            return [path]
        if path.is_dir():  # Path.glob refuses "."
            return []
    except OSError as err:
        raise failure(f"{key}: {path}: cannot be read", err) from err
    found = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    return [path for path in found if path.is_file()]


def _in_bucket(pattern: str, key: str) -> list[InputFile]:
    try:
        filesystem, path = open_filesystem(pattern)
        found = filesystem.glob(path, detail=True)
        return [
            BucketFile(filesystem, name, int(info["size"]), str(info["crc32c"]))
            for name, info in sorted(found.items())
            if info["type"] == "file" and not name.endswith("/")
        ]
    except Exception as err:  # gcsfs, google-auth and aiohttp raise their own error types
        raise failure(f"{key}: {pattern}: cannot be listed", err) from err


def download(place: str, patterns: Sequence[str], root: Path, key: str) -> Path:
    """Copy the files of gs://bucket/prefix that match ``patterns``; return the copy's directory.

    The directory is in ``root`` and named by a digest of the files' names and contents, so that no
    content is copied twice.
    Raises ConfigError if no file matches, and the error of ``failure`` if the copy fails. Messages
    begin with ``key``.
    """
    try:
        wanted = re.compile("|".join(map(fnmatch.translate, patterns)))
        found = [each for each in _in_bucket(f"{place}/*", key) if wanted.match(each.name)]
        if not found:
            raise ConfigError(f"{key}: {place} has no file {' or '.join(patterns)}")
        named = f"{digest_of([*found])} {[file.name for file in found]}"
        target = root / hashlib.sha256(named.encode()).hexdigest()[:16]
        if not target.exists():
            root.mkdir(parents=True, exist_ok=True)
            with new_directory(target) as copy:
                copies = [str(copy / file.name) for file in found]
                found[0].filesystem.get([file.path for file in found], copies)
    except (ConfigError, UnavailableError):
        raise
    except Exception as err:  # storage clients raise their own error types
        raise failure(f"{key}: {place} cannot be downloaded", err) from err
    return target


def read_bytes(place: Path | str) -> bytes:
    """Return the content of a file; raises FileNotFoundError if there is no such file."""
    if isinstance(place, Path):
        return place.read_bytes()
    filesystem, path = open_filesystem(place)
    return filesystem.cat_file(path)


def beside(place: Path | str, name: str) -> Path | str:
    """Return the location of the file ``name`` in the directory of another file."""
    if isinstance(place, Path):
        return place.with_name(name)
    return f"{place.rpartition('/')[0]}/{name}"


def digest_of(files: list[Path] | list[InputFile]) -> str:
    """Return the hexadecimal SHA-256 of the files' lengths and contents.

    For an object of a bucket, its CRC-32C is used instead of its content.
    """
    digest = hashlib.sha256()
    for file in files:
        if isinstance(file, BucketFile):
            digest.update(file.size.to_bytes(8, "big") + file.crc32c.encode())
            continue
        with file.open("rb") as content:
            inner = hashlib.file_digest(content, "sha256")
        digest.update(file.stat().st_size.to_bytes(8, "big") + inner.digest())
    return digest.hexdigest()
