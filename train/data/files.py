"""Input files on disk or in a bucket."""

import fnmatch
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from train.storage import converted_errors, new_directory, open_filesystem, parse_location
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
        """The part of the object's path after the last slash."""
        return self.path.rpartition("/")[2]

    def open(self, mode: str = "r", **options: Any) -> IO[Any]:
        """Open the object for reading, as Path.open does."""
        return self.filesystem.open(self.path, mode, **options)

    def __str__(self) -> str:
        return f"gs://{self.path}"


type InputFile = Path | BucketFile


def find(pattern: str, key: str) -> list[InputFile]:
    """List the files that match a path or glob pattern, sorted.

    Raises ConfigError if no file matches or one cannot be read, and the errors of
    ``storage.converted_errors`` if the files cannot be listed. Messages begin with ``key``.
    """
    path = parse_location(pattern, key)
    files = _in_bucket(path, key) if isinstance(path, str) else _on_disk(path, key)
    if not files:
        raise ConfigError(f"{key}: no file matches {pattern}")
    for file in files:
        if isinstance(file, Path) and not os.access(file, os.R_OK):
            raise ConfigError(f"{key}: {file} cannot be read: Permission denied")
    return files


def _on_disk(path: Path, key: str) -> list[InputFile]:
    with converted_errors(f"{key}: {path}: cannot be read"):
        if path.is_file():
            return [path]
        if path.is_dir():  # Path.glob, called below, would refuse "."
            return []
    matches = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    return [path for path in matches if path.is_file()]


def _in_bucket(pattern: str, key: str) -> list[InputFile]:
    with converted_errors(f"{key}: {pattern}: cannot be listed"):
        filesystem, path = open_filesystem(pattern)
        matches = filesystem.glob(path, detail=True)
        return [
            BucketFile(filesystem, name, int(info["size"]), str(info["crc32c"]))
            for name, info in sorted(matches.items())
            if info["type"] == "file" and not name.endswith("/")
        ]


def download(source: str, patterns: Sequence[str], root: Path, key: str) -> Path:
    """Copy the files of gs://bucket/prefix that match ``patterns``; return the copy's directory.

    The copy's directory is in ``root`` and named by a digest of the files' names and contents, so
    that no content is copied twice. Raises ConfigError if no file matches, and the errors of
    ``storage.converted_errors`` if the copy fails. Messages begin with ``key``.
    """
    with converted_errors(f"{key}: {source} cannot be downloaded"):
        name_pattern = re.compile("|".join(map(fnmatch.translate, patterns)))
        files = [file for file in _in_bucket(f"{source}/*", key) if name_pattern.match(file.name)]
        if not files:
            raise ConfigError(f"{key}: {source} has no file {' or '.join(patterns)}")
        identity = f"{digest_of([*files])} {[file.name for file in files]}"
        target = root / hashlib.sha256(identity.encode()).hexdigest()[:16]
        if not target.exists():
            root.mkdir(parents=True, exist_ok=True)
            with new_directory(target) as copy:
                copies = [str(copy / file.name) for file in files]
                files[0].filesystem.get([file.path for file in files], copies)
    return target


def read_bytes(file: Path | str) -> bytes:
    """Return the content of a file; raises FileNotFoundError if there is no such file."""
    if isinstance(file, Path):
        return file.read_bytes()
    filesystem, path = open_filesystem(file)
    return filesystem.cat_file(path)


def beside(file: Path | str, name: str) -> Path | str:
    """Return the location of the file ``name`` in the directory of another file."""
    if isinstance(file, Path):
        return file.with_name(name)
    return f"{file.rpartition('/')[0]}/{name}"


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
