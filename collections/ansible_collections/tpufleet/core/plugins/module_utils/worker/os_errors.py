"""Errors of the operating system: a full disk in a program's output, descriptions of OSErrors."""

from __future__ import annotations

_NO_SPACE = "no space left on device"
"""The text for ENOSPC in the C locale, in lower case, because programs written in Go print it so.

os.strerror() is not used, because Ansible's modules set the locale of the user. rsync and uv print
this text in every locale, because they do not set LC_MESSAGES; pip does, so it needs LC_ALL.
"""


def output_says_disk_is_full(output: str) -> bool:
    """Return whether another program failed because of a full disk, according to its output."""
    return _NO_SPACE in output.lower()


def os_error_text(error: OSError, subject: str = "") -> str:
    """Describe an OSError for the user: ``path: reason``.

    If the error has no path, as those of read(2) and write(2), ``subject`` is named instead. If
    ``subject`` is empty, only the reason is returned.
    """
    path = error.filename or subject
    reason = error.strerror or str(error) or type(error).__name__
    return f"{path}: {reason}" if path else reason
