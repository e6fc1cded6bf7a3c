#!/usr/bin/python
"""Module tpufleet.core.run_pack: pack a run's files on a worker into one archive."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_pack
short_description: Pack what a run has written on a worker into one archive
description:
  - The archive has the run's metrics, log, config, heartbeat, exit status and the state of its
    rendezvous, and the main fields of its last launch, such as the command. It does not have the
    environment variables, which may contain secrets.
options:
  bundle:
    description: Whether to add files for a bug report. They contain the state and the journal of
      the run's unit, the kernel's version, disk space, memory and devices.
    type: bool
    default: false
  checkpoints:
    description: Which checkpoints to add, if they are in a directory on the worker. V(newest) means
      the newest finished one. For checkpoints in a bucket, use M(tpufleet.core.run_fetch).
    type: str
    choices: [none, newest, all]
    default: none
  checkpoint_pattern:
    description: A pattern of the checkpoints' paths, with the meaning of
      O(tpufleet.core.run_fetch#module:pattern).
    type: str
    default: ""
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Pack what the run has written
  tpufleet.core.run_pack:
    run: shakespeare
  become: true
"""

RETURN = r"""
path:
  description: The path of the archive on the worker. Only root and the user who logged in can read
    it, and the caller must remove it. In check mode, the module removes it.
  returned: success
  type: str
checksum:
  description: The SHA-1 checksum of the archive. The archives of the same files are the same.
  returned: in check mode
  type: str
files:
  description: The names of the files in the archive.
  returned: success
  type: list
  elements: str
passed_over:
  description: The checkpoints that are newer than the added one but not finished or not intact,
    each with the reason.
  returned: success
  type: list
  elements: str
unreadable:
  description: The files that could not be read completely, each with the error. Those that could
    not be opened are not in the archive; the others have zeros in place of the missing bytes.
  returned: success
  type: list
  elements: str
missing:
  description: Why there is no checkpoint to add. Empty if there is one, if the checkpoints are in a
    bucket, or if O(checkpoints=none).
  returned: success
  type: str
"""

import gzip
import io
import json
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.checkpoint_sound import (
    Layout,
    files_of,
    newest_finished,
    no_finished_error,
)
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.run import RunError, WorkerPaths, check_name, runs_trainer
from ..module_utils.worker.run_unit import launched_here
from ..module_utils.worker.safe_files import open_file
from ..module_utils.worker.units import UNIT

WRITTEN = ("config.yml", "exit.json", "heartbeat.json", "log", "rendezvous.json", "metrics.jsonl")
DIAGNOSTICS = {
    "unit.txt": ["systemctl", "status", "--no-pager", "--lines=0", "{unit}"],
    "journal.txt": ["journalctl", "--no-pager", "--lines=500", "--unit={unit}"],
    "kernel.txt": ["uname", "-a"],
    "disks.txt": ["df", "-h"],
    "memory.txt": ["free", "-m"],
    "devices.txt": ["sh", "-c", "ls -l /dev/accel* /dev/vfio/* 2>&1"],
}


def output_of(command: list[str], unit: str) -> bytes:
    """Return the standard output of a command, or the error if it cannot be run or takes too long.

    ``{unit}`` in the command stands for the run's systemd unit.
    """
    try:
        arguments = [argument.format(unit=unit) for argument in command]
        return subprocess.run(arguments, capture_output=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}\n".encode()


def pack(params: dict, paths: WorkerPaths, archive: tarfile.TarFile) -> dict[str, Any]:
    """Add a run's files to the archive; return what was left out, with the reasons.

    Raises RunError if this worker never had the run.
    """
    run = check_name(params["run"])
    folder, launched = paths.run_dir(run), launched_here(run, paths)
    if not folder.is_dir() or folder.is_symlink():
        raise RunError(
            f"this worker has no files of run {run}. List the runs: "
            "ansible-playbook playbooks/status.yml"
        )
    result = {"passed_over": [], "unreadable": [], "missing": ""}
    for path in [folder / name for name in WRITTEN]:
        try:
            stream = open_file(path)
        except OSError:  # the file is missing or not a regular file
            continue
        if error := add_file(archive, stream, f"{run}/{path.name}"):
            result["unreadable"].append(f"{path.name}: {error}")
    if params["bundle"]:
        for name, command in DIAGNOSTICS.items():
            add_content(archive, output_of(command, UNIT.format(run)), f"{run}/{name}")
    if launched:
        add_content(archive, json.dumps(launched, indent=1).encode(), f"{run}/launch.json")
    checkpoints = str(launched.get("checkpoints", ""))
    if params["checkpoints"] == "none" or "://" in checkpoints:
        return result
    if not checkpoints:
        return result | {"missing": f"run {run}: its launch.json names no checkpoint location"}
    command = launched.get("command")
    is_own = isinstance(command, list) and runs_trainer(command)
    layout = Layout(is_own, pattern=params["checkpoint_pattern"])
    # Read as the trainer's user: a symbolic link must not reach files that only root may read.
    with effective_user(folder.lstat().st_uid):
        newest = params["checkpoints"] == "newest"
        added = pack_checkpoints(run, Path(checkpoints), layout, newest, archive)
    return added | {"unreadable": result["unreadable"] + added["unreadable"]}


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    """Act as the user and group ``uid`` during a with block, if this process runs as root."""
    before = os.geteuid(), os.getegid(), os.getgroups()
    if before[0] == 0 != uid:
        os.setgroups([])
        os.setegid(uid)
        os.seteuid(uid)
    try:
        yield
    finally:
        if os.geteuid() != before[0]:
            os.seteuid(before[0])
            os.setegid(before[1])
            os.setgroups(before[2])


class PaddedFile:
    """Wrapper around a file that returns zeros in place of bytes that cannot be read.

    The size of a file in an archive is fixed in advance, but a log may be truncated meanwhile.
    ``error`` says what could not be read.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.error = ""

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes of the file, with zeros in place of missing ones."""
        try:
            content = self._stream.read(size)
        except OSError as error:
            content, self.error = b"", error.strerror
        if len(content) < size:
            self.error = self.error or "the file was truncated while it was read"
        return content.ljust(size, b"\0")


def add_file(archive: tarfile.TarFile, stream: IO[bytes], name: str) -> str:
    """Add an open file to the archive, up to its current size because it may grow; close the file.

    Returns why the file could not be read completely, else an empty string. Raises OSError if
    the archive cannot be written.
    """
    with stream:
        padded = PaddedFile(stream)
        archive.addfile(archive.gettarinfo(arcname=name, fileobj=stream), padded)
    return padded.error


def add_content(archive: tarfile.TarFile, content: bytes, name: str) -> None:
    """Add a file with the given content to the archive."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def pack_checkpoints(
    run: str, directory: Path, layout: Layout, newest: bool, archive: tarfile.TarFile
) -> dict[str, Any]:
    """Add all checkpoints, or only the newest finished one; return what was left out and why.

    ``directory`` has the run's checkpoints, and ``layout`` says which files in it are checkpoints.
    """
    result: dict[str, Any] = {"passed_over": [], "unreadable": [], "missing": ""}
    if not directory.is_dir():
        return result | {"missing": f"{directory}: there are no checkpoints of run {run}"}
    sizes = sizes_below(directory)
    names = sorted(sizes)
    if newest:
        path, faults = newest_finished(layout, sizes, lambda name: read_file(directory / name))
        result["passed_over"] = faults
        if not path:
            return result | {"missing": no_finished_error(str(directory), layout, faults, sizes)}
        names = files_of(path, sizes)
    for name in names:
        try:
            stream = open_file(directory / name)
        except OSError as error:
            result["unreadable"].append(f"{name}: {error.strerror}")
            continue
        if fault := add_file(archive, stream, f"{run}/checkpoints/{name}"):
            result["unreadable"].append(f"{name}: {fault}")
    return result


def sizes_below(directory: Path) -> dict[str, int]:
    """Return the sizes of all regular files below a directory; keys are relative paths.

    Files that the trainer deletes meanwhile are left out.
    """
    sizes = {}
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                sizes[str(path.relative_to(directory))] = status.st_size
    return sizes


def read_file(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError."""
    with open_file(path) as stream:
        return stream.read()


def main() -> None:
    """Run the module: write the archive to a file for root and the user who logged in."""
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str", "required": True},
            "bundle": {"type": "bool", "default": False},
            "checkpoints": {
                "type": "str",
                "choices": ["none", "newest", "all"],
                "default": "none",
            },
            "checkpoint_pattern": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    handle, name = tempfile.mkstemp(prefix="tpufleet-", suffix=".tar.gz")
    try:
        with (
            os.fdopen(handle, "wb") as stream,
            # Leave the time and the name out of gzip's header, so that equal files always give an
            # equal archive.
            gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            result = pack(params, WorkerPaths(), archive)
            files = archive.getnames()
            if login := os.environ.get("SUDO_UID"):
                # Give the archive to the login user, who copies and then removes it.
                os.fchown(stream.fileno(), int(login), -1)
    except BaseException as error:
        Path(name).unlink()
        if isinstance(error, RunError):
            module.fail_json(msg=str(error))
        if isinstance(error, OSError):
            module.fail_json(msg=os_error_text(error, name))
        raise
    if module.check_mode:
        result["checksum"] = module.sha1(name)
        Path(name).unlink()
    module.exit_json(changed=False, path=name, files=files, **result)


if __name__ == "__main__":
    main()
