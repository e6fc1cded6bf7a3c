#!/usr/bin/env python3
"""Keep this machine's accounts and ssh keys as in its metadata, like Google's guest agent.

Runs in every machine and uses only the standard library. The keys are the lines ``user:public key``
of ``ssh-keys`` in the node's and the project's metadata. Lines that users added to
``authorized_keys`` stay.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlencode

SERVER = "169.254.169.254"
MARKER = "# Added by Google"
GROUP = "google-sudoers"
WAIT_S = 600
AFTER_AN_ERROR_S = 2.0
_USER = re.compile(r"[a-z_][-a-z0-9_]{0,31}")


def login_keys(text: str) -> dict[str, list[str]]:
    """Parse the lines ``user:key``; skip malformed lines and invalid user names."""
    users: dict[str, list[str]] = {}
    for line in text.splitlines():
        user, colon, key = line.strip().partition(":")
        if colon and _USER.fullmatch(user) and key:
            users.setdefault(user, []).append(key)
    return users


def desired_keys(metadata: Mapping) -> dict[str, list[str]]:
    """Return each user's ssh keys in the metadata of the instance and the project.

    The instance can block the project's keys. ``metadata`` is the complete tree that the metadata
    server returns.
    """
    own = metadata["instance"]["attributes"]
    texts = [own.get("ssh-keys", "")]
    if own.get("block-project-ssh-keys", "").lower() != "true":
        texts.append(metadata["project"]["attributes"].get("ssh-keys", ""))
    return login_keys("\n".join(texts))


def merge(lines: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Return the lines of an ``authorized_keys`` file, with the agent's keys replaced by ``keys``.

    Each key of the agent has the line MARKER before it; all other lines stay.
    """
    other_lines, is_marked = [], False
    for line in lines:
        if not is_marked and line != MARKER:
            other_lines.append(line)
        is_marked = line == MARKER
    return other_lines + [line for key in keys for line in (MARKER, key)]


def apply(users: Mapping[str, list[str]], home: Path = Path("/home")) -> list[str]:
    """Create accounts, write keys, remove obsolete keys; return users whose keys changed.

    ``users`` maps each user to the desired keys; ``home`` is the parent of the home directories.
    """
    changed = []
    for user in sorted({*users, *_marked_users(home)}):
        try:
            if not (home / user).is_dir():
                _add(user)
            if _write(home / user / ".ssh", user, users.get(user, [])):
                changed.append(user)
        except (OSError, KeyError, subprocess.CalledProcessError) as error:
            print(f"{user}: {error}", file=sys.stderr, flush=True)  # noqa: T201
    return changed


def _marked_users(home: Path) -> list[str]:
    users = []
    for file in home.glob("*/.ssh/authorized_keys"):
        with contextlib.suppress(OSError):
            if MARKER in file.read_text(errors="surrogateescape").splitlines():
                users.append(file.parent.parent.name)
    return users


def _add(user: str) -> None:
    command = ["useradd", "--create-home", "--shell", "/bin/bash", "--groups", GROUP, user]
    subprocess.run(command, check=True)


def _write(directory: Path, user: str, keys: list[str]) -> bool:
    """Write a user's ``authorized_keys`` to ``directory`` atomically; return whether it changed."""
    file = directory / "authorized_keys"
    before = file.read_text(errors="surrogateescape").splitlines() if file.exists() else []
    after = merge(before, keys)
    if after == before:
        return False
    account = pwd.getpwnam(user)
    if not directory.exists():
        directory.mkdir(mode=0o700)
        os.chown(directory, account.pw_uid, account.pw_gid)
    partial = directory / ".authorized_keys.partial"
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    # Do not follow a link that the user may have created.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", errors="surrogateescape") as stream:
        stream.write("".join(f"{line}\n" for line in after))
        os.fchown(stream.fileno(), account.pw_uid, account.pw_gid)
    partial.replace(file)
    return True


def next_metadata(last_etag: str, server: str = SERVER) -> tuple[dict, str]:
    """Wait until the metadata differ from ``last_etag``; return them with their ETag.

    Raises OSError or HTTPException if the metadata server gives no answer or an unexpected one.
    """
    query = {"recursive": "true", "wait_for_change": "true", "timeout_sec": WAIT_S}
    target = f"/computeMetadata/v1/?{urlencode({**query, 'last_etag': last_etag})}"
    connection = http.client.HTTPConnection(server, timeout=WAIT_S + 30)
    try:
        connection.request("GET", target, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise http.client.HTTPException(f"the metadata server answered {answer.status}")
        return json.loads(content), answer.headers["ETag"]
    finally:
        connection.close()


def main() -> None:
    """Update the users' ssh keys after each change of the metadata; never returns."""
    etag = "0"
    while True:
        try:
            metadata, etag = next_metadata(etag)
            for user in apply(desired_keys(metadata)):
                print(f"updated the keys of {user}", flush=True)  # noqa: T201
        except (OSError, http.client.HTTPException, subprocess.CalledProcessError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            time.sleep(AFTER_AN_ERROR_S)


if __name__ == "__main__":
    main()
