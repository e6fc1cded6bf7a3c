"""The controller's side of tpufleet.core.release: copy the code and send changes to workers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.path import unfrackpath

from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.release import ReleaseError, listing, read_manifest
from ..plugin_utils.replaced_file import replace_file
from ..plugin_utils.runs.code_tree import staged

INCOMING = ".cache/tpufleet/incoming"
PROGRAMS = "programs"
SSH_FAILED = 255
RSYNC_STREAM = 12
FOLLOW_UP_ERRORS = re.compile(
    r"rsync error:|rsync:.*(connection unexpectedly|safe_write|Broken pipe)"
)
LEADER_SECONDS = 900


def ssh_command(get_option: Callable[[str], Any]) -> list[str]:
    """Return the ssh command with its arguments and the host, from Ansible's connection options.

    ``get_option`` returns the value of an option of ``ansible.builtin.ssh``. If ``control_path`` is
    set (the inventory sets it), the command reuses the connection that Ansible has open.
    """
    # Remove ssh's option -C: rsync --compress compresses better, in a quarter of the time.
    arguments = [
        argument for argument in shlex.split(get_option("ssh_args") or "") if argument != "-C"
    ]
    values = {
        "BatchMode": "yes",
        "ConnectTimeout": get_option("timeout"),
        "Port": get_option("port"),
        "User": get_option("remote_user"),
        "IdentityFile": get_option("private_key_file"),
        "StrictHostKeyChecking": "no" if get_option("host_key_checking") is False else None,
    }
    for keyword, value in values.items():
        arguments += ["-o", f'{keyword}="{value}"'] if value else []
    for name in ("ssh_common_args", "ssh_extra_args"):
        arguments += shlex.split(get_option(name) or "")
    if get_option("control_path"):
        # ssh uses the first value of a keyword. Add ControlPath last, so that a ControlPath in the
        # user's ssh arguments takes precedence.
        directory = unfrackpath(get_option("control_path_dir"))
        arguments += [
            "-o",
            f'ControlPath="{get_option("control_path") % {"directory": directory}}"',
        ]
    return [get_option("ssh_executable"), *arguments, get_option("host")]


class ActionModule(ActionBase):
    """Sends a release to one worker; all workers of a task get the same release."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        """Copy the code to a release on the controller, and install the release on the worker."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "code": {"type": "path", "required": True},
                "code_paths": {"type": "list", "elements": "str", "default": []},
                "link": {"type": "str", "default": "current"},
            }
        )
        # A path is relative to the current directory of ansible-playbook, not to the playbook.
        code = Path(os.path.abspath(options["code"]))  # noqa: PTH100 - Path.absolute() keeps ".."
        is_own = options["link"] == PROGRAMS
        name = re.sub(r"[^A-Za-z0-9_-]", "-", PROGRAMS if is_own else code.name) or "code"
        try:
            tree, release = staged(str(code), options["code_paths"], is_own=is_own)
        except OSError as error:
            raise AnsibleActionFail(os_error_text(error)) from None
        except ReleaseError as error:
            raise AnsibleActionFail(str(error)) from None
        directory = Path(constants.DEFAULT_LOCAL_TMP) / f"release-{self._task._uuid}"
        directory.mkdir(exist_ok=True)
        source = ReleaseSource.for_worker(task_vars or {}, directory)
        has_release = False
        try:
            result = self._deliver(options, tree, release, name, task_vars, source)
            has_release = not result.get("failed")
        finally:
            source.report_result(has_release)
        if "before" in result:
            result["diff"] = {
                "before": result.pop("before"),
                "after": listing(read_manifest(tree)),
                "before_header": "last release",
                "after_header": f"release {release}",
            }
        return result

    def _deliver(
        self,
        options: dict,
        tree: Path,
        release: str,
        name: str,
        task_vars: dict | None,
        source: ReleaseSource,
    ) -> dict:
        """Let the worker copy the release from its leader, or send it by rsync; then verify it.

        ``options`` are the module's options, ``tree`` is the copy of the code on the controller,
        and ``name`` is the directory below INCOMING in which the worker keeps the sent files. The
        release is sent without checking first whether the worker already has it: rsync skips
        unchanged files, and the check would take as long as the verification that follows.
        """
        if self._task.check_mode or source.wait_for_leader():
            from_leader = not self._task.check_mode
            result = self._verify(options, release, name, task_vars, from_leader)
            if not result.pop("mismatch", False) or self._task.check_mode:
                return result
        for rsync_options in ((), ("--checksum",)):
            self._send(tree, name, *rsync_options)
            result = self._verify(options, release, name, task_vars, False)
            if not result.pop("mismatch", False):
                break
        return result

    def _send(self, tree: Path, name: str, *rsync_options: str) -> None:
        """Mirror the tree into the directory ``name`` below INCOMING on the worker.

        ``rsync_options`` are additional options of rsync. Raises AnsibleConnectionFailure if ssh
        fails, AnsibleActionFail for other errors.
        """
        target = f"{INCOMING}/{name}"
        command = ["rsync", "--recursive", "--links", "--perms", "--times", "--delete"]
        command += ["--compress", *rsync_options]
        transport = self._connection.transport
        if transport == "local":
            directory = Path.home() / target
            directory.mkdir(parents=True, exist_ok=True)
            destination = f"{directory}/"
        elif transport == "ssh":
            command += ["--rsh", shlex.quote(str(self._remote_shell(tree.parent.parent)))]
            command += ["--rsync-path", f"mkdir -p {target} && rsync"]
            destination = f"worker:{target}/"
        else:
            raise AnsibleActionFail(
                f"code can be copied to a worker only over ssh or a local connection, not "
                f"{transport}. Set ansible_connection: ssh"
            )
        with tempfile.TemporaryFile() as stderr:
            try:
                result = subprocess.run(
                    [*command, f"{tree}/", destination],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    check=False,
                )
            except FileNotFoundError:
                raise AnsibleActionFail(
                    "there is no rsync on the controller: install rsync"
                ) from None
            stderr.seek(0)
            error = error_cause(stderr.read().decode(errors="replace"))
        # If ssh fails, rsync may notice the broken pipe first and exit with RSYNC_STREAM.
        if result.returncode == SSH_FAILED or (
            result.returncode == RSYNC_STREAM and error.startswith("ssh: ")
        ):
            raise AnsibleConnectionFailure(error)
        if result.returncode != 0:
            raise AnsibleActionFail(f"rsync failed with exit code {result.returncode}: {error}")

    def _remote_shell(self, directory: Path) -> Path:
        """Write a program that runs ssh with this host's connection options; return its path.

        rsync passes a host name as the first argument; the program uses the address of the
        connection instead.
        """
        get_option = self._connection.get_option
        command = ssh_command(get_option)
        if get_option("control_path"):
            # Create the directory of ssh's control sockets: Ansible creates it only when it first
            # uses ssh, which may be after this task.
            control_directory = Path(unfrackpath(get_option("control_path_dir")))
            control_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(dir=directory, prefix="ssh-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f'#!/bin/sh\nshift\nexec {shlex.join(command)} "$@"\n')
        program = Path(path)
        program.chmod(0o700)
        return program

    def _verify(
        self, options: dict, release: str, name: str, task_vars: dict | None, from_leader: bool
    ) -> dict:
        """Install and verify the release by running the module on the worker.

        With ``from_leader``, the worker copies the release from its leader. ``mismatch`` in the
        result means that the release could not be copied, or that files are missing or wrong.
        """
        arguments = {**options, "release": release, "incoming": f"{INCOMING}/{name}"}
        arguments["from_leader"] = from_leader
        return self._execute_module(
            module_name="tpufleet.core.release", module_args=arguments, task_vars=task_vars
        )


@dataclass(frozen=True)
class ReleaseSource:
    """The source of the release for one worker: the controller, or the leader of the worker's TPU.

    The leader, worker 0, gets the release from the controller; the other workers copy it from the
    leader. ``is_leader`` is true if this worker gets the release from the controller. In
    ``result_file``, the leader's task reports whether it succeeded; the field is None if the TPU
    has no other worker or the leader is not in the play.
    """

    is_leader: bool
    result_file: Path | None

    @classmethod
    def for_worker(cls, task_vars: Mapping[str, Any], directory: Path) -> ReleaseSource:
        """Return the source of the release for the worker with the variables ``task_vars``.

        ``directory`` is where the leader's task writes ``result_file``.
        """
        tpu = task_vars.get("tpu_id") or task_vars.get("tpu_name")
        if not tpu or int(task_vars.get("tpu_worker_count", 1)) < 2:
            return cls(True, None)
        result_file = directory / re.sub(r"[^A-Za-z0-9_-]", "-", f"leader-{tpu}")
        if int(task_vars.get("tpu_worker_id", 0)) == 0:
            return cls(True, result_file)
        hostvars = task_vars["hostvars"]
        leader_in_play = any(
            hostvars[host].get("tpu_worker_id") == 0
            and (hostvars[host].get("tpu_id") or hostvars[host].get("tpu_name")) == tpu
            for host in task_vars.get("ansible_play_hosts", [])
        )
        return cls(False, result_file if leader_in_play else None)

    def report_result(self, succeeded: bool) -> None:
        """Report to the workers that wait for this leader whether its task succeeded."""
        if self.is_leader and self.result_file:
            replace_file(self.result_file, b"good" if succeeded else b"bad")

    def wait_for_leader(self) -> bool:
        """Wait for the leader's task; return whether to try to copy the release from the leader.

        True if the leader's task succeeded, or if the leader is not in the play, since the leader
        may have the release already. False if this worker is the leader.
        """
        if self.is_leader:
            return False
        if not self.result_file:
            return True
        deadline = time.monotonic() + LEADER_SECONDS
        while not self.result_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.result_file.exists() and self.result_file.read_text(encoding="ascii") == "good"


def error_cause(output: str) -> str:
    """Return the line of ssh's or rsync's error output that states the cause of the failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if not FOLLOW_UP_ERRORS.match(line)]
    if any("rsync: not found" in line or "rsync: command not found" in line for line in lines):
        return "no rsync on the worker. Install it: ansible-playbook setup.yml --tags base"
    return (causes or lines or ["no error output"])[-1]
