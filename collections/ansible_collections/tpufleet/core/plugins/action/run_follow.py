"""The action plugin of tpufleet.core.run_follow: show new log lines of all workers.

Ansible runs the task of each worker in its own process (fork). Each fork reads the log of its
worker. The first fork also shows the lines of all workers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.worker.run import current_runs
from ..plugin_utils.outputs.reader import clean
from ..plugin_utils.runs.observation import parse_process
from ..plugin_utils.runs.status import process_text
from ..plugin_utils.view.folded_stream import FoldedStream
from .run_wait import with_reconnects

WAIT_SECONDS = 20
"""How long run_info on a worker waits for new lines before it returns."""
GATHER_SECONDS = 1.0
"""Pause between two calls of run_info on a worker, so that each call returns several lines."""
POLL_SECONDS = 0.3


class ActionModule(ActionBase):
    """Follows one worker's log."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Follow the log until the run has ended on this worker.

        Ansible calls this in one process (fork) per worker. The fork of the first worker also
        shows the lines of all workers.
        """
        result = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={"run": {"type": "str"}, "lines": {"type": "int", "default": 50}}
        )
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        hosts = [str(name) for name in variables["ansible_play_hosts"]]
        forks = int(context.CLIARGS.get("forks") or constants.DEFAULT_FORKS)
        if len(hosts) > forks:
            raise AnsibleActionFail(
                f"following {len(hosts)} workers needs {len(hosts)} forks (now {forks}). Add "
                f"--forks {len(hosts)}, or select fewer workers with --limit"
            )
        folder = Path(constants.DEFAULT_LOCAL_TMP) / f"follow-{self._task._uuid}"
        folder.mkdir(mode=0o700, exist_ok=True)
        own_file = folder / f"{hosts.index(host)}.jsonl"
        display_thread = None
        if host == hosts[0]:
            display_thread = threading.Thread(target=show, args=(folder, hosts), daemon=True)
            display_thread.start()
        state, run = "", ""
        try:
            for answer in self._poll(options, task_vars):
                run, state, lines = answer
                write(own_file, {"lines": lines})
            return result | {"changed": False, "run": run, "state": state}
        finally:
            write(own_file, {"lines": [f"--- {state}"] if state else [], "end": True})
            if display_thread:
                display_thread.join()

    def _poll(
        self, options: Mapping[str, Any], task_vars: Mapping[str, Any] | None
    ) -> Iterator[tuple[str, str, list[str]]]:
        """Poll the run until it ends on this worker; yield its name, status text and new log lines.

        Without the option ``run``, follows the worker's first active run; if no run is active, the
        first run that has ended.
        """
        run = options["run"]
        if not run:
            runs = current_runs(self._ask({}, task_vars)["runs"])
            if not runs:
                yield "", "no run has a log on this worker", []
                return
            run = next((report for report in runs if report["active"]), runs[0])["run"]
        log_end = -1
        while True:
            arguments = {
                "run": run,
                "since": log_end,
                "lines": options["lines"],
                "wait": WAIT_SECONDS,
            }
            observation = self._ask(arguments, task_vars)["runs"][0]
            if not observation["attempt"]:
                yield run, "this worker does not have the run", []
                return
            log_end = observation["log_end"]
            lines = [clean(str(line)) for line in observation["log"]]
            yield run, process_text(parse_process("", observation)), lines
            if not observation["active"] and not lines:
                return
            if observation["active"]:
                time.sleep(GATHER_SECONDS)

    def _ask(
        self, arguments: dict[str, Any], task_vars: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        answer = with_reconnects(
            lambda: self._execute_module(
                module_name="tpufleet.core.run_info", module_args=arguments, task_vars=task_vars
            ),
            GATHER_SECONDS,
        )
        if answer.get("failed"):
            raise AnsibleActionFail(
                str(answer.get("msg", "the module run_info failed without a message"))
            )
        return answer


def write(file: Path, entry: Mapping[str, Any]) -> None:
    """Append an entry to a fork's file as one line of JSON.

    An entry has new lines of the worker's log, or says that the log has ended.
    """
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


def show(folder: Path, hosts: list[str]) -> None:
    """Show the lines that the forks write to their files, until all forks have ended."""
    stream, bytes_read = FoldedStream(hosts), dict.fromkeys(hosts, 0)
    active = set(hosts)
    while True:
        for index, host in enumerate(hosts):
            for entry in new_entries(folder / f"{index}.jsonl", bytes_read, host):
                for line in entry["lines"]:
                    stream.add(host, line, time.monotonic())
                if entry.get("end"):
                    active.discard(host)
        # Display all lines in one call: ansible-playbook hangs if a signal ends this process during
        # a call of display().
        if lines := stream.due(time.monotonic(), active):
            Display().display("\n".join(lines))
        if not active:
            return
        time.sleep(POLL_SECONDS)


def new_entries(file: Path, bytes_read: dict[str, int], host: str) -> list[dict[str, Any]]:
    """Return the entries that a fork has appended to its file since the last call.

    ``bytes_read`` maps each host to the number of bytes read so far; the function updates it.
    """
    try:
        with file.open("rb") as stream:
            stream.seek(bytes_read[host])
            data = stream.read()
    except FileNotFoundError:
        return []
    complete_lines = data[: data.rfind(b"\n") + 1]
    bytes_read[host] += len(complete_lines)
    return [json.loads(line) for line in complete_lines.splitlines()]
