"""Checks that this worker can write a run's checkpoints and stored output.

Also checks whether checkpoints would survive the loss of the TPU. The parameter ``env`` of the
functions has the trainer's environment variables.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from .bucket_objects import (
    delete_object,
    has_own_key,
    request_failure,
    storage_api,
    write_object,
)
from .contract import USER

OTHER_LOCATION = "choose another location: -e checkpoints=PATH"
TRY_SECONDS = 60.0
"""Time limit to create a test file. NFS waits without limit for a server that is down."""
_REFUSALS = (401, 403, 404)


def unwritable_reason(path: str, env: Mapping[str, str]) -> str | None:
    """Try to write to a checkpoint location as the trainer will.

    Returns why the write fails; None if it works.
    """
    if path.startswith("gs://"):
        return bucket_problem(path, env)
    if "://" in path:
        return (
            f"{path}: checkpoints need a directory or a bucket (gs://BUCKET/PREFIX). "
            f"To fix it, {OTHER_LOCATION}"
        )
    return directory_problem(path)


def directory_problem(path: str) -> str | None:
    """Try to write below a local path as the trainer's user.

    Returns why the write fails; None if it works.
    """
    try:
        account = pwd.getpwnam(USER)
    except KeyError:
        return f"the user {USER} does not exist here. Create it: ansible-playbook setup.yml"
    script = (
        'p=$1; while [ ! -e "$p" ]; do p=$(dirname "$p"); done; '
        't=$(mktemp "$p/.tpufleet-XXXXXX") && rm -f "$t"'
    )
    # subprocess.run() is not used, because after its timeout it waits for the process to end. Even
    # SIGKILL may not end a process that waits for a file server.
    process = subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", path],
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=TRY_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return (
            f"{path}: the file system did not respond within {TRY_SECONDS:.0f} s. "
            f"Check its file server, or {OTHER_LOCATION}"
        )
    if process.returncode == 0:
        return None
    cause = (errors.strip().splitlines() or ["no error output"])[-1]
    parent = path.rpartition("/")[0]
    # Do not suggest setup for an existing directory: setup would change the directory's owner.
    fix = f"Let {USER} write there"
    if not os.path.lexists(parent):
        fix = f"Create the directory: ansible-playbook setup.yml --tags run -e checkpoints={parent}"
    return (
        f"{path}: the user {USER} can't write checkpoints there ({cause.rpartition(': ')[2]}). "
        f"{fix}, or {OTHER_LOCATION}"
    )


def bucket_problem(url: str, env: Mapping[str, str]) -> str | None:
    """Try to write an object beside the checkpoints in a bucket, then delete the object.

    Returns why that fails; None if it works. If ``env`` names a key file, writes nothing and
    returns None, because the write would use the worker's service account instead of that key.
    """
    if has_own_key(env):
        return None
    try:
        try_write(url, env)
    except OSError as error:
        cause, fix = request_failure(error), f"{grant_command(url)}, or {OTHER_LOCATION}"
    except ValueError:
        cause, fix = "malformed API response", f"To fix it, {OTHER_LOCATION}"
    else:
        return None
    return f"{url}: this worker can't write checkpoints there ({cause}). {fix}"


def unwritable_outputs_reason(outputs: str, checkpoints: str, env: Mapping[str, str]) -> str | None:
    """Try to write to the location ``outputs`` of a run's stored output.

    Returns why the bucket refuses the write, else None. Writes nothing if the checkpoints are in
    the same bucket, because ``unwritable_reason`` checks that bucket. Returns None for a bucket
    that does not respond, because the service that stores output will try again.
    """
    if not outputs or (bucket_of(outputs) == bucket_of(checkpoints) and not has_own_key(env)):
        return None
    try:
        # Do not pass the trainer's key file: the service that stores output uses the worker's
        # service account instead.
        try_write(outputs, {"STORAGE_EMULATOR_HOST": env.get("STORAGE_EMULATOR_HOST", "")})
    except OSError as error:
        if getattr(error, "code", None) in _REFUSALS:
            return (
                f"{outputs}: this worker can't store output there ({request_failure(error)}). "
                f"{grant_command(outputs)}, or choose another location, a bucket or a directory on "
                "the controller: -e outputs=LOCATION"
            )
    except ValueError:
        pass
    return None


def bucket_of(url: str) -> str:
    """Return the first part of a ``gs://`` URL, ``gs://BUCKET``."""
    return "/".join(url.split("/")[:3])


def grant_command(url: str) -> str:
    """Return advice for an error: the command that gives this worker write access to a bucket."""
    return (
        "Allow its service account: gcloud storage buckets add-iam-policy-binding "
        f"{bucket_of(url)} --member=serviceAccount:EMAIL --role=roles/storage.objectUser"
    )


def try_write(url: str, env: Mapping[str, str], must_delete: bool = True) -> None:
    """Write an object below a ``gs://`` URI and delete it, with this worker's service account.

    Unless ``must_delete``, succeeds even if the object cannot be deleted. Raises OSError
    (urllib.error.HTTPError with a ``code`` if the request is refused), ValueError.
    """
    api, test_url = storage_api(env), f"{url.rstrip('/')}/.tpufleet-{uuid.uuid4().hex}"
    write_object(api, test_url, b"a try\n")
    try:
        delete_object(api, test_url)
    except OSError:
        if must_delete:
            raise


def loss_reason(path: str, leader: str, root: str = "/") -> str | None:
    """Return why checkpoints in a directory are lost with this TPU; None if they are not.

    Checkpoints are lost if they are on a worker's own disk or on the leader's disk (NFS). They
    survive in a bucket, on another machine's NFS share and on a data disk. ``leader`` is the
    leader's address, and ``root`` is a path on the worker's own disk.
    """
    if "://" in path:
        return None
    if on_same_disk(path, root):
        return f"{path} is on this worker's own disk"
    result = subprocess.run(
        ["findmnt", "--noheadings", "--output", "FSTYPE,SOURCE", "--target", str(nearest(path))],
        capture_output=True,
        text=True,
        check=False,
    )
    kind, _, source = result.stdout.strip().partition(" ")
    if kind.startswith("nfs") and source.strip().rpartition(":")[0].strip("[]") == leader:
        return f"{path} is on the disk of this TPU's leader (NFS)"
    return None


def on_same_disk(path: str, root: str = "/") -> bool:
    """Return whether a path, or its nearest existing parent, is on the disk of ``root``."""
    return nearest(path).stat().st_dev == Path(root).stat().st_dev


def nearest(path: str) -> Path:
    """Return the path if it exists, else its nearest existing parent."""
    existing = Path(path)
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return existing
