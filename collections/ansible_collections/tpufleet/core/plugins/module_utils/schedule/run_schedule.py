"""The controller's timers as text: systemd units (systemd.timer(5)) or crontab lines.

A timer starts the playbook of a verb (docs/verbs). If the controller is off at a timer's fixed
time, or asleep until more than GRACE_MINUTES later, the timer skips this time.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..worker.contract import RUN_NAME
from ..worker.launch_spec import VARIABLE
from ..worker.node_identity import NODE_ID, ZONE

PREFIX = "tpufleet-do-"
VERBS = ("watch", "report", "kill", "restart", "delete")
#: Verbs without a target. With systemd, their interval timers also fire when they are installed.
PERIODIC = ("watch", "report")
#: Verbs that must not run late. They need a fixed time, because only a timer with a fixed time
#: checks whether it fires late.
DESTRUCTIVE = ("kill", "delete")
#: A timer with a fixed time does nothing if it fires more than this many minutes late.
GRACE_MINUTES = 5
#: Timeout of a scheduled playbook in seconds, longer than any single action of the watch.
LIMIT_SECONDS = 5400
#: Programs that crontab lines run, which macOS does not have, and the packages that contain them.
CRON_PROGRAMS = {"flock": "util-linux", "timeout": "coreutils"}
_SPAN = re.compile(r"([1-9][0-9]{0,5})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AT = re.compile(r"[0-9A-Za-z*/:.,~ +_-]{1,100}")
_OBJECT = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,221}/[A-Za-z0-9._/-]{1,900}\.html")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

LIKE = (
    "ansible-playbook playbooks/schedule.yml -e watch=1m, "
    "or -e kill=RUN -e at='\"2026-12-31 18:00\"', or -e restart=RUN -e every=6h"
)


class ScheduleError(Exception):
    """A timer cannot be created, listed or removed; the message is one line for the user."""


@dataclass(frozen=True)
class Origin:
    """The checkout of tpufleet and the inventories from which a timer was scheduled."""

    project: str
    inventories: tuple[str, ...]

    @classmethod
    def of(cls, project: str, inventories: Iterable[str]) -> Origin:
        """Return an origin whose paths are absolute and have no symbolic links, so that == works.

        An inventory with a comma is a list of hosts, not a path, and stays as it is.
        """
        sources = (each if "," in each else os.path.realpath(each) for each in inventories)
        return cls(os.path.realpath(project), tuple(sources))


@dataclass(frozen=True)
class Timer:
    """One timer: a verb, its target, and either a time (systemd.time(7)) or an interval in seconds.

    Args:
        verb: the playbook to start, such as ``kill``.
        target: the name of a run or a TPU; empty for verbs without a target.
        at: the time; empty for a timer with an interval.
        every: the interval in seconds; 0 for a timer with a time.
        project: the directory in which the playbook is started.
        tool: the program ansible-playbook.
        arguments: the arguments of ``tool``.
        environment: names and values of environment variables for ``tool``.
        zone: the zone of the TPU ``target``; empty for other targets.
    """

    verb: str
    target: str
    at: str
    every: int
    project: str
    tool: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    zone: str = ""

    @property
    def name(self) -> str:
        """The timer's name. A verb has at most one timer for each target."""
        target = f"-{self.target}" if self.target else ""
        return f"{PREFIX}{self.verb}{target}" + (f"_{self.zone}" if self.zone else "")

    @property
    def origin(self) -> Origin:
        """The checkout and the inventories of the timer."""
        return Origin.of(self.project, _inventories(self.arguments))

    @property
    def lock(self) -> Path:
        """The lock file that keeps executions of a crontab line from overlapping."""
        return Path.home() / f".cache/tpufleet/{self.name}.lock"


def seconds(span: str) -> int:
    """Convert a duration such as 90s, 1m, 6h or 1d to seconds. Raises ScheduleError."""
    found = _SPAN.fullmatch(span.strip())
    if not found:
        raise ScheduleError(f"every={span!r} is not a duration. For example: {LIKE}")
    return int(found[1]) * _SECONDS[found[2]]


def check(verb: str, target: str, at: str, every: str) -> tuple[str, int]:
    """Validate the options of a timer; return its time and its interval in seconds.

    The options are those of the module run_schedule. Without ``at``, the time is an empty string;
    without ``every``, the interval is 0. Raises ScheduleError.
    """
    if verb not in VERBS:
        raise ScheduleError(f"{verb!r} can't be scheduled. Use one of: {', '.join(VERBS)}")
    if verb not in PERIODIC and not RUN_NAME.fullmatch(target):
        raise ScheduleError(f"{verb}: invalid name ({target!r}). For example: {LIKE}")
    if bool(at) == bool(every):
        raise ScheduleError(f"{verb}: set either -e at=TIME or -e every=6h. For example: {LIKE}")
    if verb in DESTRUCTIVE and every:
        raise ScheduleError(
            f"{verb}: needs a time, not an interval (every={every!r:.20}). For example: {LIKE}"
        )
    if at and not _AT.fullmatch(at):
        raise ScheduleError(
            f"at={at!r:.120} is not a time as in systemd.time(7). For example: {LIKE}"
        )
    if at and ":" not in at:
        raise ScheduleError(
            f"at={at!r:.120} has no time of day. A value with a space needs quotes inside the "
            f"quotes of the shell. For example: {LIKE}"
        )
    return at, seconds(every) if every else 0


def playbook_arguments(
    verb: str,
    target: str,
    inventories: Sequence[str],
    zone: str = "",
    node_id: str = "",
    publish: str = "",
) -> tuple[str, ...]:
    """Return the arguments of ansible-playbook for a verb.

    ``target`` is the name of a run or a TPU, empty for verbs without a target. ``publish`` is the
    ``gs://`` URL to which a report is written, empty for none. The verb delete needs the ``zone``
    and ``node_id`` (the API's id) of its TPU, so that it never deletes a later TPU of the same
    name. Raises ScheduleError if one of these values is missing or invalid.
    """
    where = [word for source in inventories for word in ("-i", source)]
    variables = [f"{'tpu' if verb == 'delete' else 'run'}={target}"] if target else []
    if verb == "delete":
        if not re.fullmatch(ZONE, zone) or not re.fullmatch(NODE_ID, node_id):
            raise ScheduleError(
                f"delete: the zone and the id of TPU {target} are not known ({zone!r:.80}, "
                f"{node_id!r:.80}). To find them, run: ansible-playbook "
                f"playbooks/schedule.yml -e delete={target} -e at='\"2026-12-31 18:00\"'"
            )
        variables += [f"zone={zone}", f"node_id={node_id}", "yes=true"]
    if publish:
        if not _OBJECT.fullmatch(publish):
            raise ScheduleError(f"publish={publish!r:.120}: expected gs://BUCKET/NAME.html")
        variables.append(f"publish={publish}")
    more = [word for variable in variables for word in ("-e", variable)]
    return (*where, f"playbooks/{verb}.yml", *more)


def check_origin(timer: Timer, origin: Origin | None) -> None:
    """Raise ScheduleError if an installed timer with this timer's name has another origin.

    ``origin`` is that of the installed timer, None if no timer with this name is installed or its
    origin is not known.
    """
    if origin in (None, timer.origin):
        return
    raise ScheduleError(
        f"{timer.name}: this controller has a timer of this name for another inventory or checkout "
        f"(inventory {', '.join(origin.inventories) or 'none'}, directory {origin.project}). To "
        "replace it, remove it first: ansible-playbook playbooks/schedule.yml "
        f"-e remove={timer.name}"
    )


def service_origin(text: str) -> Origin | None:
    """Parse the origin of a timer from its service unit; None if the text has another format."""
    project = re.search(r"^WorkingDirectory=(.+)$", text, re.MULTILINE)
    command = re.search(r"^ExecStart=:(.+)$", text, re.MULTILINE)
    if not project or not command:
        return None
    try:
        words = shlex.split(command[1].replace("%%", "%"))
    except ValueError:
        return None
    return Origin.of(project[1].replace("%%", "%"), _inventories(words))


def cron_origin(line: str) -> Origin | None:
    """Parse the origin of a timer from its crontab line; None if the line has another format."""
    try:
        words = shlex.split(line.replace(r"\%", "%"))
        return Origin.of(words[words.index("cd") + 1], _inventories(words))
    except ValueError:
        return None


def check_environment(values: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Validate a timer's environment variables; return those that are not empty, sorted.

    Raises ScheduleError.
    """
    for name, value in values:
        if not VARIABLE.fullmatch(name) or _CONTROL.search(value):
            raise ScheduleError(
                f"environment variable {name!r:.60}: the name or the value cannot be written into "
                "a unit or a crontab. Remove line breaks and other control characters"
            )
    return tuple(sorted((name, value) for name, value in values if value))


def service(timer: Timer) -> str:
    """Return the text of the timer's service unit."""
    lines = [
        "[Unit]",
        f"Description={_description(timer)}",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=oneshot",
        f"TimeoutStartSec={LIMIT_SECONDS}",
        f"WorkingDirectory={_escaped_percent(timer.project)}",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in timer.environment),
        *([f"ExecCondition={_command(_is_due(timer.at))}"] if timer.at else []),
        f"ExecStart={_command([timer.tool, *timer.arguments])}",
    ]
    return "\n".join(lines) + "\n"


def timer_unit(timer: Timer) -> str:
    """Return the text of the timer unit.

    With an interval, a timer of ``watch`` or ``report`` fires as soon as it is started, which is at
    its installation and at each boot. A timer of another verb first fires after one interval.
    """
    if timer.every:
        first = 1 if timer.verb in PERIODIC else timer.every
        # OnUnitActiveSec is the time between two starts. A slow playbook delays the next start.
        when = f"OnActiveSec={first}s\nOnUnitActiveSec={timer.every}s\n"
    else:
        when = f"OnCalendar={timer.at}\n"
    return (
        f"[Unit]\nDescription={_description(timer)}\n\n[Timer]\n{when}AccuracySec=1s\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )


def cron_line(timer: Timer) -> str:
    """Return the timer's crontab line, for a controller without systemd. Raises ScheduleError.

    A timer for a fixed time is refused: cron may start a missed job up to three hours late, which
    is unsafe for kill and delete.
    """
    if not timer.every:
        raise ScheduleError(
            f"{timer.verb}: a time (at=) needs systemd, which this controller does not have. "
            "Schedule it on a controller with systemd (docs/controller.md)"
        )
    times = cron_times(timer.every)
    if not times:
        raise ScheduleError(
            f"{timer.verb}: cron has no such interval (every={timer.every}s). Use minutes that "
            f"divide an hour (5m), hours that divide a day (6h), or 1d. For example: {LIKE}"
        )
    settings = [f"{name}={value}" for name, value in timer.environment]
    words = [
        # cron's PATH is short, so flock and timeout are found by the timer's PATH.
        *("env", *settings),
        *("flock", "--nonblock", "--conflict-exit-code=0", str(timer.lock)),
        *("timeout", "--kill-after=60", str(LIMIT_SECONDS)),
        *(timer.tool, *timer.arguments),
    ]
    command = f"cd {shlex.quote(timer.project)} && {shlex.join(words)}".replace("%", r"\%")
    return f"{times} {command} >/dev/null 2>&1 # {timer.name}"


def cron_times(every: int) -> str:
    """Return the five time fields of crontab(5) for an interval in seconds.

    Returns an empty string for an interval that cron cannot repeat evenly, because cron restarts
    the count of minutes each hour and the count of hours each day.
    """
    if every == 86400:
        return "0 0 * * *"
    if every % 3600 == 0 and 86400 % every == 0:
        return f"0 */{every // 3600} * * *"
    if every % 60 == 0 and 3600 % every == 0:
        return f"*/{every // 60} * * * *"
    return ""


def _inventories(words: Sequence[str]) -> tuple[str, ...]:
    """Return the inventories that a command names by its options ``-i``."""
    return tuple(value for option, value in pairwise(words) if option == "-i")


def _description(timer: Timer) -> str:
    zone = f" ({timer.zone})" if timer.zone else ""
    return f"tpufleet: {timer.verb} {timer.target}".rstrip() + zone


def _is_due(at: str) -> list[str]:
    """Return a shell command that succeeds only within GRACE_MINUTES after the time ``at``.

    Without this check, a timer could start its playbook late: systemd fires a timer after its time
    if the computer was asleep at that time, or if a change of the clock skipped it.
    """
    calendar = f"systemd-analyze calendar --base-time=-{GRACE_MINUTES}min {shlex.quote(at)}"
    return ["/bin/sh", "-c", f"LC_ALL=C {calendar} | grep -q ' ago$'"]


def _command(words: Sequence[str]) -> str:
    """Format a command for a unit file. The prefix ``:`` disables the substitution of ``$``."""
    return ":" + " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """Quote an argument for a unit file (systemd.syntax(7), systemd.unit(5) "SPECIFIERS")."""
    if re.fullmatch(r"[A-Za-z0-9_./:=@,+-]+", word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped_percent(escaped)}"'


def _escaped_percent(text: str) -> str:
    return text.replace("%", "%%")
