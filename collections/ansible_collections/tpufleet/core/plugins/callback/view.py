"""Callback plugin for terminal output: live lines, changes, and all failures at the end."""

from __future__ import annotations

DOCUMENTATION = """
name: view
type: stdout
short_description: Terminal output for fleets of many workers
version_added: 0.1.0
description:
  - On a terminal, a live line for each TPU shows the running task and how long it has taken. Only
    changes, failures, warnings and messages stay on the screen. Several workers are shown as one
    name, such as C(pod-w[0-31]).
  - Without a terminal, if E(CI) is set, or if E(TERM) is not set or is C(dumb), the output is plain
    lines without control codes. The changes of a role on the same workers share a line. A long task
    prints its progress about every ten seconds, on one growing line, or on separate lines if E(CI)
    is set.
  - Failures are printed in full at the end, with their workers, the cause and the fix.
  - With C(-v) or more, and in plays with the strategy C(free) or C(host_pinned), the output is that
    of P(ansible.builtin.default#callback).
  - A full log, readable only by its owner, is always written; the last line has its path. The
    newest hundred logs of its directory are kept.
  - If E(TPUFLEET_RESULT_FILE) is the path of a file, the failures are also written to this file as
    JSON, for the program that started the playbook.
extends_documentation_fragment:
  - ansible.builtin.default_callback
  - ansible.builtin.result_format_callback
options:
  log_dir:
    description: The directory of the logs.
    type: path
    default: ~/.local/state/tpufleet/logs
    env:
      - name: TPUFLEET_LOG_DIR
    ini:
      - section: callback_view
        key: log_dir
requirements:
  - set as stdout in configuration
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback.default import CallbackModule as Default

from ..plugin_utils.view import play_result
from ..plugin_utils.view import task_tally as tally
from ..plugin_utils.view.folded_names import folded
from ..plugin_utils.view.full_log import FullLog
from ..plugin_utils.view.progress import ProgressMessage
from ..plugin_utils.view.screen import Screen
from ..plugin_utils.view.suggested_commands import fleet_options, with_fleet_options
from ..plugin_utils.view.task_tally import TaskTally
from ..plugin_utils.view.unreachable import unreachable_text

_COLORS = {tally.CHANGED: constants.COLOR_CHANGED, tally.IGNORED: constants.COLOR_WARN}
_MAX_ERROR_CHARS = 140
_DEBUG = ("ansible.builtin.debug", "debug")


class CallbackModule(Default):
    """Callback that counts results in a TaskTally, prints on a Screen and writes a FullLog."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "tpufleet.core.view"

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._is_check_mode = bool(context.CLIARGS.get("check"))
        self._fleet_options = fleet_options(context.CLIARGS, constants.DEFAULT_HOST_LIST)
        self._tally: TaskTally | None = None
        self._play_name = ""
        self._hosts: list[str] = []
        self._play_is_shown = True
        self._is_default_view = self._display.verbosity > 0
        self._failures: list[tally.Failure] = []
        self._messages: dict[str, list[str]] = {}
        self._diffs: dict[str, list[str]] = {}
        self._warnings: dict[str, list[str]] = {}
        self._log: FullLog | None = None
        self._screen: Screen | None = None

    # Callbacks, in the order in which Ansible calls them.

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Create the log file and the screen."""
        try:
            directory = Path(self.get_option("log_dir")).expanduser()
            self._log = FullLog(directory, Path(playbook._file_name).stem)
        except OSError as err:
            self._display.warning(
                f"can't write the log ({err}). Set TPUFLEET_LOG_DIR to another directory"
            )
        if self._display.verbosity > 0:
            super().v2_playbook_on_start(playbook)
        else:
            self._screen = Screen(
                self._display,
                _terminal_stream(),
                self._live_lines,
                self._brief_progress,
                self._store_progress,
            )
            if self._is_check_mode:
                self._print_line("check mode: nothing is changed", constants.COLOR_VERBOSE)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Store the play's name, which is shown before the first output of the play."""
        self._end_task()
        self._is_default_view = self._display.verbosity > 0 or play.strategy.rpartition(".")[2] in (
            "free",
            "host_pinned",
        )
        self._play_name, self._play_is_shown = play.get_name().strip(), False
        self._log_line(f"play: {self._play_name}")
        if self._is_default_view:
            super().v2_playbook_on_play_start(play)
        self._hosts = list(play.hosts)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """End the previous task, and start counting the results of this one."""
        self._begin_task(task)
        if self._is_default_view:
            super().v2_playbook_on_task_start(task, is_conditional)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """End the previous task, and start counting the results of this handler."""
        self._begin_task(task)
        if self._is_default_view:
            super().v2_playbook_on_handler_task_start(task)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Record that a host has started the task."""
        if self._tally:
            self._tally.started.append(host.get_name())
        if self._is_default_view:
            super().v2_runner_on_start(host, task)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Count the result; store the message of a debug task until the task ends."""
        if not isinstance(result.task, TaskInclude):
            self._record_outcome(result, tally.CHANGED if _has_changed(result) else tally.OK)
        if self._is_default_view:
            return super().v2_runner_on_ok(result)
        self._store_warnings(result)
        self._handle_warnings_and_exception(result)
        if result.task.action in _DEBUG and not result.task.loop:
            self._store_message(result)
        return None

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Count the result; skipped tasks are not printed."""
        self._record_outcome(result, tally.SKIPPED)
        if self._is_default_view:
            super().v2_runner_on_skipped(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Show the failure in one line; it is printed in full at the end."""
        self._record_outcome(result, tally.IGNORED if ignore_errors else tally.FAILED)
        if not ignore_errors:
            self._record_failure(result, tally.FAILED)
        if self._is_default_view:
            super().v2_runner_on_failed(result, ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Show the unreachable host in one line; its error is printed in full at the end."""
        ignored = bool(result.task.ignore_unreachable)
        self._record_outcome(result, tally.IGNORED if ignored else tally.UNREACHABLE)
        if not ignored:
            self._record_failure(result, tally.UNREACHABLE)
        if self._is_default_view:
            super().v2_runner_on_unreachable(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Store the label of a changed loop item until the task ends."""
        if self._is_default_view:
            return super().v2_runner_item_on_ok(result)
        if self._tally and _has_changed(result):
            self._tally.items.append(str(self._get_item_label(result.result)))
        if result.task.action in _DEBUG:
            self._store_message(result)
        return None

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Print nothing, since the failure of the whole loop contains its items."""
        if self._is_default_view:
            super().v2_runner_item_on_failed(result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Print nothing for a skipped loop item."""
        if self._is_default_view:
            super().v2_runner_item_on_skipped(result)

    def v2_runner_retry(self, result: Any) -> None:
        """Show the retry in the live lines."""
        if self._is_default_view:
            return super().v2_runner_retry(result)
        if self._tally:
            attempt, retries = result.result.get("attempts"), result.result.get("retries")
            host = result.host.get_name()
            self._tally.progress[host] = f"{host}: try {attempt} of {retries} failed"
        return None

    def v2_on_file_diff(self, result: Any) -> None:
        """Store a diff until the task ends, so that equal diffs are shown only once."""
        if self._is_default_view:
            return super().v2_on_file_diff(result)
        items = result.result["results"] if result.task.loop and "results" in result.result else ()
        for item in items or (result.result,):
            if item.get("diff") and item.get("changed") and (text := self._get_diff(item["diff"])):
                self._diffs.setdefault(text, []).append(result.host.get_name())
        return None

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Print nothing for included files."""
        if self._is_default_view:
            super().v2_playbook_on_include(included_file)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Print Ansible's message, or a warning if --limit excludes a play on localhost.

        Prints nothing for ``hosts: "!all"``, the pattern by which playbooks leave out a play.
        """
        if self._hosts == ["!all"] and not self._is_default_view:
            return
        limit = context.CLIARGS.get("subset")
        if limit and self._hosts == ["localhost"]:
            self._display.warning(
                f"skipped {self._play_name!r}: it runs on localhost, which --limit {limit} "
                "excludes. Name a TPU with -e tpu=NAME instead"
            )
        else:
            super().v2_playbook_on_no_hosts_matched()

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Print nothing, since the printed failures explain why no hosts remain."""
        if self._is_default_view:
            super().v2_playbook_on_no_hosts_remaining()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the failures in full, the recap, and the path of the log."""
        self._end_task()
        counts = {host: stats.summarize(host) for host in stats.processed}
        recap = tally.recap_lines(counts)
        failures = tally.failure_lines(self._failures)
        for line in (*failures, *recap):
            self._log_line(line)
        if self._display.verbosity > 0:
            super().v2_playbook_on_stats(stats)
        else:
            for line in failures:
                self._display.display(line, color=constants.COLOR_ERROR)
            for line in recap:
                self._display.display(line)
        self._write_result()
        elapsed = f"{time.monotonic() - self._began:.0f} s"
        if self._log:
            self._display.display(f"{elapsed}; the full log is {_short_path(self._log.path)}")
            self._log.close()
        if self._screen:
            self._screen.close()

    # Private methods.

    def _begin_task(self, task: Any) -> None:
        self._end_task()
        name = task.get_name().strip()
        self._log_line(f"task: {name}")
        self._tally = TaskTally(name, time.monotonic())

    def _end_task(self) -> None:
        ended, self._tally = self._tally, None
        if ended and not self._is_default_view:
            for outcome, label, task, hosts in ended.lines(self._is_check_mode):
                self._print_change(outcome, label, task, hosts)
            for text, hosts in self._warnings.items():
                prefix = f"{folded(hosts)}: " if hosts else ""
                self._display.warning(f"{prefix}{text}")
            for text, hosts in self._diffs.items():
                self._print_line(f"    {folded(hosts)}:")
                self._display.display(text.rstrip("\n"))
            for text, hosts in self._messages.items():
                separator = "\n" if "\n" in text else " "
                self._print_line(
                    f"{folded(hosts)}:{separator}{text}" if len(ended.outcomes) > 1 else text
                )
        self._diffs, self._messages, self._warnings = {}, {}, {}

    def _record_outcome(self, result: Any, outcome: str) -> None:
        host = self.host_label(result)
        if self._tally:
            self._tally.outcomes[result.host.get_name()] = outcome
            self._tally.progress.pop(result.host.get_name(), None)
        if self._log:
            self._log.result(host, outcome, result.result)

    def _record_failure(self, result: Any, outcome: str) -> None:
        text = tally.failure_text(result.result)
        if outcome == tally.UNREACHABLE:
            text = unreachable_text(text, str(result.host.vars.get("tpu_name", "")))
        text = with_fleet_options(text, self._fleet_options)
        host, task = self.host_label(result), result.task.get_name().strip()
        self._failures.append(tally.Failure(task, host, outcome, text))
        if not self._is_default_view:
            self._store_warnings(result)
            # Print the deprecation warnings; _store_warnings has removed all other warnings from
            # the result.
            self._handle_warnings(result.result)
            shortened = (text.splitlines() or [""])[0]
            if len(shortened) > _MAX_ERROR_CHARS:
                shortened = shortened[: _MAX_ERROR_CHARS - 1] + "…"
            self._print_line(f"  {outcome:<8}  {task}  {host}: {shortened}", constants.COLOR_ERROR)

    def _store_warnings(self, result: Any) -> None:
        """Store warnings until the task ends, so that equal ones are shown once, with their hosts.

        The warnings of a ``run_once`` task are shown without a host, since the task runs
        for all hosts.
        """
        host = result.host.get_name()
        named_hosts = [] if result.task.run_once or host == "localhost" else [host]
        for warning in result.result.pop("warnings", ()):
            text = with_fleet_options(str(warning), self._fleet_options)
            hosts = self._warnings.setdefault(text, [])
            hosts += [name for name in named_hosts if name not in hosts]

    def _store_message(self, result: Any) -> None:
        message = result.result.get("msg")
        if message is None:
            self._clean_results(result.result, result.task.action)
            message = self._dump_results(result.result)
        text = "\n".join(map(str, message)) if isinstance(message, list) else str(message)
        text = with_fleet_options(text, self._fleet_options)
        self._messages.setdefault(text, []).append(result.host.get_name())

    def _print_change(self, outcome: str, label: str, task: str, hosts: str) -> None:
        role, colon, name = task.partition(" : ")
        if not self._screen or not colon:
            self._print_line(f"  {label:<8}  {task}  {hosts}", _COLORS[outcome])
            return
        self._print_play_name()
        prefix = f"  {label:<8}  {role} : "
        self._screen.append(prefix, name, f"  {hosts}", _COLORS[outcome])

    def _print_play_name(self) -> None:
        if not self._play_is_shown and self._play_name:
            self._display.display(self._play_name, color=constants.COLOR_HIGHLIGHT)
        self._play_is_shown = True

    def _print_line(self, text: str, color: str | None = None) -> None:
        self._print_play_name()
        self._display.display(text, color=color)

    def _write_result(self) -> None:
        if path := os.environ.get(play_result.VARIABLE):
            try:
                play_result.write_result(Path(path), self._failures)
            except OSError as error:
                self._display.warning(
                    f"{path}: can't write the result file ({error.strerror}). Set "
                    f"{play_result.VARIABLE} to a file in a writable directory"
                )

    def _log_line(self, text: str) -> None:
        if self._log:
            self._log.line(text)

    def _live_lines(self, now: float) -> list[str]:
        running_task = self._tally
        return running_task.live_lines(now) if running_task and not self._is_default_view else []

    def _brief_progress(self, now: float) -> tuple[str, str] | None:
        # CI systems show only complete lines, so a growing progress line is useless there.
        if self._is_default_view or not self._tally or os.environ.get("CI"):
            return None
        return self._tally.brief_progress(now)

    def _store_progress(self, message: ProgressMessage) -> bool:
        """Store a progress message for the live lines; return False if no task is running.

        A message of several lines lets the live lines use almost all rows of the terminal instead
        of half of them.
        """
        if not self._tally:
            return False
        text = message.strip()
        self._log_line(f"progress: {text}")
        self._tally.progress[message.subject] = text
        if self._screen:
            self._screen.fill = "\n" in text
        return True


def _has_changed(result: Any) -> bool:
    return bool(result.result.get("changed", False))


def _terminal_stream() -> Any:
    """Return standard output if it is a terminal that supports escape sequences, else None."""
    is_plain = os.environ.get("CI") or os.environ.get("TERM", "dumb") == "dumb"
    return sys.stdout if sys.stdout.isatty() and not is_plain else None


def _short_path(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
