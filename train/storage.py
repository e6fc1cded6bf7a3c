"""Files and directories on disk or in a bucket."""

import errno
import fcntl
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from train.strict import ConfigError

log = logging.getLogger(__name__)

REFUSED = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
REFUSED_STATUS = (400, 401, 403, 404)

STALE_SECONDS = 60
"""Age from which an unlocked temporary directory counts as left by a killed process. The creator of
a newer one may not have locked it yet."""

STALL_SECONDS = 60
"""How long a request to a bucket may wait for the next part of the response before it is tried
again. Without a limit, gcsfs would wait forever, and the process would keep its heartbeat fresh."""


class UnavailableError(Exception):
    """Temporary failure, such as an outage: a retry may succeed. The message is one line."""


@contextmanager
def converted_errors(prefix: str) -> Iterator[None]:
    """Convert errors in the ``with`` block; the messages of the new errors begin with ``prefix``.

    The new error is a ConfigError if the location is missing or access is denied, because then the
    config is wrong; otherwise, it is an UnavailableError.
    """
    try:
        yield
    except (ConfigError, UnavailableError):
        raise
    except Exception as err:  # gcsfs, aiohttp and huggingface_hub raise their own error types
        reason = getattr(err, "strerror", None) or one_line(err)
        kind = ConfigError if _is_refused(err) else UnavailableError
        raise kind(f"{prefix}: {reason}") from err


@contextmanager
def logged_errors(message: str) -> Iterator[None]:
    """Log an error in the ``with`` block instead of raising it, after the text ``message``."""
    try:
        yield
    except Exception as err:  # gcsfs, google-auth, aiohttp and JAX raise their own error types
        if threading.main_thread().is_alive():  # at exit, requests of other threads fail
            log.warning("%s: %s", message, one_line(err))


def _is_refused(err: Exception) -> bool:
    # gcsfs raises HttpError, which has a code; for status 403, it raises OSError without an errno.
    # Errors of the hub's client have a response. During an outage, that client raises
    # LocalEntryNotFoundError, a subclass of FileNotFoundError, so compare types exactly.
    status = getattr(err, "code", None) or getattr(
        getattr(err, "response", None), "status_code", None
    )
    is_refused = type(err) in REFUSED or str(err).startswith("Forbidden: ")
    is_too_long = getattr(err, "errno", None) == errno.ENAMETOOLONG
    return is_refused or is_too_long or status in REFUSED_STATUS


def one_line(err: Exception) -> str:
    """Format an error as one line: its type, and its message cut to 300 characters."""
    return f"{type(err).__name__}: {' '.join(str(err).split())[:300]}"


def parse_location(text: str, key: str) -> Path | str:
    """Return a Path, or gs://bucket/prefix without a slash at its end.

    Raises ConfigError, whose message begins with ``key``, for another scheme or without a bucket.
    """
    if text.startswith("gs://") and text[5:6] not in ("", "/"):
        return text.rstrip("/")
    if "://" in text:
        raise ConfigError(f"{key}: must be a path or gs://bucket/name, not {text}")
    return Path(text).expanduser()


def open_filesystem(location: Path | str) -> tuple[Any, str]:
    """Return fsspec's file system for a directory or gs://bucket/prefix, and the path in it."""
    # By default gcsfs requests the bucket's type from another API for each file, which is slow if
    # that API is unreachable or credentials are missing. Standard access works for all buckets.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # gcsfs raises an error when its retries fail, so its log lines about each retry are noise.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    import fsspec  # slow to import

    options: dict[str, Any] = {"use_listings_cache": False}
    if "://" in str(location):
        from aiohttp import ClientTimeout

        # No limit for the whole request: the download of a large file may take hours.
        options["requests_timeout"] = ClientTimeout(
            sock_connect=STALL_SECONDS, sock_read=STALL_SECONDS
        )
    return fsspec.core.url_to_fs(str(location), **options)


def write_atomically(location: Path | str, content: str | bytes) -> None:
    """Replace a file or an object, so that readers never see a part of it."""
    content = content.encode() if isinstance(content, str) else content
    if "://" in str(location):
        files, object_path = open_filesystem(location)
        files.pipe_file(object_path, content)
        return
    path = Path(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)


@contextmanager
def repeated(write: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call ``write`` in a thread during the ``with`` block: at once, then every ``seconds``."""
    stop = threading.Event()

    def repeat() -> None:
        write()
        while not stop.wait(seconds):
            write()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(1)  # wait 1 s at most: a write to a bucket may hang


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory, and rename it to ``path`` at the end of the ``with`` block.

    If another process has created ``path`` by then, that directory stays. After an error, the
    temporary directory is removed.
    """
    with temporary_directory(path.parent) as parent:
        new = parent / "new"
        new.mkdir()
        yield new
        try:
            new.rename(path)
        except OSError:
            if not path.exists():
                raise


@contextmanager
def temporary_directory(parent: Path) -> Iterator[Path]:
    """Yield a new directory in ``parent``, and remove it at the end of the ``with`` block.

    After a kill, it stays until a later call for ``parent`` on this host.
    """
    prefix = f".partial-{socket.gethostname()}-"
    for stale in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            # Do not try to lock a recent directory: its creator may be about to lock it.
            if time.time() - stale.stat().st_mtime > STALE_SECONDS:
                with _locked(stale) as is_unused:
                    if is_unused:
                        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name, _locked(Path(name)):
        yield Path(name)


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Lock a directory until the end of the ``with`` block or of this process.

    Yields False if another process has locked it, or if the file system supports no locks.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        is_locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def check_path_writable(location: Path | str, key: str = "") -> None:
    """Check that a directory, which is created if missing, or gs://bucket/prefix is writable.

    Raises the errors of ``converted_errors``. Messages begin with the location, or with ``key`` (a
    key of the config) and the location.
    """
    with converted_errors(f"{key and key + ': '}{location}: cannot be written"):
        if isinstance(location, Path):
            location.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=location):
                return
        bucket, root = open_filesystem(location)
        probe = f"{root}/.probe-{socket.gethostname()}-{os.getpid()}"
        bucket.pipe_file(probe, b"")
        bucket.rm_file(probe)


@contextmanager
def output_directory(location: Path | str) -> Iterator[Path]:
    """Yield a local directory for files that are to be written to ``location``.

    The directory is ``location`` itself if that is a path. For gs://bucket/prefix, it is temporary,
    and its files are uploaded at the end of the ``with`` block.
    """
    if isinstance(location, Path):
        yield location
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        files, root = open_filesystem(location)
        for path in Path(folder).iterdir():
            files.put_file(str(path), f"{root}/{path.name}")
