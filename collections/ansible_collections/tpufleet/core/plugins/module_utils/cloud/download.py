"""Downloads of listed objects from a bucket, verified by generation and checksum.

Every object has a CRC-32C; objects that are not composite also have an MD5. Source:
https://cloud.google.com/storage/docs/data-validation. Runs on the controller only.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Protocol

from . import errors
from .storage import Bucket, StoredObject

MAX_PARALLEL = 8
#: Number of bytes of an object that one request downloads.
CHUNK_BYTES = 8 << 20


class DownloadError(Exception):
    """One object could not be downloaded. The message does not name the object; callers add it."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


def path_of(folder: Path, name: str) -> Path:
    """Return an object's local path below ``folder``. Raises DownloadError for an unsafe name."""
    segments = name.split("/")
    if not all(segments) or {".", ".."} & set(segments) or "\0" in name:
        raise DownloadError("its name is not a valid path of a local file")
    return folder.joinpath(PurePosixPath(name))


def is_same(path: Path, stored: StoredObject) -> bool:
    """Return whether the file at ``path`` has the content of an object, by length and checksum."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != stored.size:
        return False
    checksum = _hash_for(stored)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            checksum.update(chunk)
    return _matches(checksum, stored)


def download(bucket: Bucket, stored: StoredObject, target: Path) -> None:
    """Download one object to a temporary file, and rename it to ``target`` once it is verified.

    Raises DownloadError if only this object fails; CloudError and OSError for failures that
    concern all objects.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DownloadError(
            f"its directory {target.parent} can't be created, because a file has this path"
        ) from None
    partial = target.with_name(f".{target.name}.part")
    checksum = _hash_for(stored)
    try:
        with partial.open("wb") as stream:
            for start in range(0, stored.size, CHUNK_BYTES):
                chunk = _read_chunk(bucket, stored, start)
                checksum.update(chunk)
                stream.write(chunk)
            length = stream.tell()
        if length != stored.size or not _matches(checksum, stored):
            raise DownloadError(
                f"its content does not match its checksum ({length} of {stored.size} bytes)"
            )
        partial.replace(target)
    except IsADirectoryError:
        raise DownloadError(
            "its local path is a directory, because other objects' names begin with its name and a "
            "slash"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def download_all(
    bucket: Bucket, downloads: Mapping[Path, StoredObject]
) -> dict[Path, DownloadError | None]:
    """Download objects in parallel; return the error of each path, None for a success.

    ``downloads`` maps the local paths to write to the objects. Raises CloudError and OSError for
    failures that concern all objects.
    """

    def download_one(path: Path, stored: StoredObject) -> DownloadError | None:
        try:
            download(bucket, stored, path)
        except DownloadError as error:
            return error
        return None

    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return dict(
            zip(downloads, pool.map(download_one, downloads, downloads.values()), strict=True)
        )


def missing_objects(
    folder: Path, objects: Iterable[StoredObject]
) -> tuple[dict[Path, StoredObject], dict[str, DownloadError]]:
    """Return the objects to download by local path, and the errors of unsafe objects by name.

    An object needs a download if its file is missing or has other content. An object is unsafe if
    its name is not a valid path, or if its content cannot be verified.
    """
    downloads: dict[Path, StoredObject] = {}
    unsafe: dict[str, DownloadError] = {}
    for stored in objects:
        try:
            path = path_of(folder, stored.name)
            if not is_same(path, stored):
                downloads[path] = stored
        except DownloadError as error:
            unsafe[stored.name] = error
    return downloads, unsafe


def _read_chunk(bucket: Bucket, stored: StoredObject, start: int) -> bytes:
    length = min(CHUNK_BYTES, stored.size - start)
    try:
        return bucket.content(stored.name, start, length, generation=stored.generation)
    except errors.NotFound:
        raise DownloadError("it was replaced or deleted during the download") from None
    except (
        errors.BadAnswer,
        errors.Forbidden,
        errors.InvalidRequest,
        errors.Unavailable,
    ) as error:
        raise DownloadError(f"it can't be read ({error})") from None


def _hash_for(stored: StoredObject) -> _Hash:
    if stored.md5:
        return hashlib.md5(usedforsecurity=False)
    if stored.crc32c:
        try:
            import google_crc32c
        except ImportError:
            raise DownloadError(
                "its checksum (CRC-32C) can't be computed without the Python package "
                "google-crc32c. Install it for the Python that runs Ansible, or run: make env"
            ) from None
        return google_crc32c.Checksum()
    raise DownloadError("the API returned no checksum for it")


def _matches(checksum: _Hash, stored: StoredObject) -> bool:
    expected = stored.md5 or stored.crc32c
    return base64.b64encode(checksum.digest()).decode() == expected
