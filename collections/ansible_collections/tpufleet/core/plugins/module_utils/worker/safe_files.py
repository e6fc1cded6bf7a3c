"""File access by root in directories that the trainer's user can write to.

The trainer's user owns these directories, and could put a link, a pipe or a huge file in place of
any file in them. These functions follow no link that another user could have made, do not block on
a pipe, and limit how much they read.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import IO

MAX_JSON_BYTES = 1 << 20
_MAX_LINKS = 40
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def parent_of(path: Path, make: bool = False) -> Iterator[int]:
    """Open the directory that contains ``path``; yield its descriptor for ``os.open(dir_fd=)``.

    With ``make``, creates missing directories with mode 0755. Raises OSError, with errno ELOOP if
    the directory's path contains a link that an untrusted user may have made. Every OSError,
    including those raised in the with block, has ``path`` as its file name.
    """
    try:
        directory = _walk(PurePath(path).parent, make)
        try:
            yield directory
        finally:
            os.close(directory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file for reading. Raises OSError; also if it is a link, pipe or directory."""
    with parent_of(path) as directory:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path.name, flags, dir_fd=directory)
    status = os.fstat(fd)
    # Refuse a file with several hard links: it may belong to another user.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file, or it has several hard links", str(path))
    return os.fdopen(fd, "rb")


def read_text(path: Path, limit: int) -> str | None:
    """Return the text of a UTF-8 file; None if it is unreadable or exceeds ``limit`` bytes."""
    try:
        with open_file(path) as stream:
            content = stream.read(limit + 1)
        return content.decode() if len(content) <= limit else None
    except (OSError, ValueError):
        return None


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict | None:
    """Return the JSON object in a file; None if it is invalid or exceeds ``limit`` bytes."""
    text = read_text(path, limit)
    try:
        value = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_file(path: Path, text: str, mode: int, durable: bool = True, group: int = -1) -> None:
    """Create or replace a file atomically. Its permissions never exceed ``mode``.

    With ``durable``, waits until the content is on the disk. ``group`` is the id of the file's
    group; -1 keeps the default. Raises OSError.
    """
    with parent_of(path) as directory:
        new = f".{path.name}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(
                os.open(new, flags, 0o600, dir_fd=directory), "w", encoding="utf-8"
            ) as file:
                os.fchown(file.fileno(), -1, group)
                os.fchmod(file.fileno(), mode)
                file.write(text)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(new, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=directory)
            raise


def remove_file(path: Path) -> None:
    """Remove a file or a link if it exists. Raises OSError."""
    with suppress(FileNotFoundError), parent_of(path) as directory:
        os.unlink(path.name, dir_fd=directory)


def make_directory(path: Path, uid: int, mode: int) -> None:
    """Create a directory and its parents; set its mode, and both its user and group to ``uid``.

    Raises OSError, also if ``path`` is a link.
    """
    with parent_of(path, make=True) as directory:
        with suppress(FileExistsError):
            os.mkdir(path.name, mode, dir_fd=directory)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path.name, flags, dir_fd=directory)
        try:
            status = os.fstat(fd)
            if (status.st_uid, status.st_gid) != (uid, uid):
                os.fchown(fd, uid, uid)
            if stat.S_IMODE(status.st_mode) != mode:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)


def is_directory(path: Path, uid: int) -> bool:
    """Return whether ``path`` is a directory, not a link, with ``uid`` as its user and group."""
    try:
        with parent_of(path) as directory:
            status = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and (status.st_uid, status.st_gid) == (uid, uid)


def _walk(path: PurePath, make: bool) -> int:
    """Open a directory one path component at a time, to refuse links of untrusted users.

    With ``make``, creates missing directories. Raises OSError.
    """
    remaining, links = list(path.parts), 0
    current = os.open("/" if path.is_absolute() else ".", _STEP)
    try:
        while remaining:
            name = remaining.pop(0)
            try:
                child = os.open(name, _STEP, dir_fd=current)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
                child = os.open(name, _STEP, dir_fd=current)
            except NotADirectoryError:
                links += 1
                remaining[:0] = _trusted_link(current, name, links).parts
                continue
            os.close(current)
            current = child
    except BaseException:
        os.close(current)
        raise
    return current


def _trusted_link(directory: int, name: str, count: int) -> PurePath:
    """Return the target of a link that only root or the user of this process can have made.

    ``directory`` is the file descriptor of the link's directory, and ``count`` is the number of
    links followed so far. Raises OSError for any other link, and after too many links.
    """
    link = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISLNK(link.st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
    folder, trusted = os.fstat(directory), (0, os.geteuid())
    is_open_to_others = folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX
    if folder.st_uid not in trusted or link.st_uid not in trusted or is_open_to_others:
        message = f"{name} is a link that another user may have made, so it is not followed"
        raise OSError(errno.ELOOP, message, name)
    if count > _MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return PurePath(os.readlink(name, dir_fd=directory))
