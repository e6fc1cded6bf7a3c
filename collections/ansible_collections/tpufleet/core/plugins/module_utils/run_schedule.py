"""The controller's timers, as systemd units (systemd.timer(5)) or lines of a crontab.

Pure: texts in, texts out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

PREFIX = "tpufleet-do-"
VERBS = ("watch", "kill", "restart", "delete")
_SPAN = re.compile(r"([1-9][0-9]{0,5})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AT = re.compile(r"[0-9A-Za-z*/:.,~ +_-]{1,100}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


LIKE = (
    "ansible-playbook playbooks/schedule.yml -e watch=1m, "
    "or -e kill=RUN -e at='\"2026-12-31 18:00\"', or -e restart=RUN -e every=6h"
)


class ScheduleError(Exception):
    """A schedule makes no sense; the text is one line for a person."""


@dataclass(frozen=True)
class Timer:
    """One entry: a verb, on what, and either at a time (systemd.time(7)) or every so many seconds.

    ``words`` stand behind ansible-playbook, ``project`` is where it is called, ``lock`` a file that
    only one of the controller's timers has at a time.
    """

    verb: str
    target: str
    at: str
    every: int
    project: str
    tool: str
    words: tuple[str, ...]
    lock: str
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The unit's name; the same verb on the same target is the same timer."""
        return f"{PREFIX}{self.verb}" + (f"-{self.target}" if self.target else "")

    def command(self) -> list[str]:
        """Give the words to run: a watch gives way to what is at work, the others wait for it."""
        wait = ["--nonblock", "--conflict-exit-code=0"]
        if self.verb != "watch":
            wait = ["--timeout=3600"]
        return ["/usr/bin/flock", *wait, self.lock, self.tool, *self.words]


def seconds(span: str) -> int:
    """Read a span such as 90s, 1m, 6h or 1d. Raises ScheduleError."""
    found = _SPAN.fullmatch(span.strip())
    if not found:
        raise ScheduleError(f"every={span!r} is no span: {LIKE}")
    return int(found[1]) * _SECONDS[found[2]]


def check(verb: str, target: str, at: str, every: str) -> tuple[str, int]:
    """Check what is asked for; give the time, or the seconds. Raises ScheduleError."""
    if verb not in VERBS:
        raise ScheduleError(f"{verb!r} can't be scheduled: {', '.join(VERBS)} can")
    if verb != "watch" and not _NAME.fullmatch(target):
        raise ScheduleError(f"{verb} what? not {target!r}: {LIKE}")
    if bool(at) == bool(every):
        raise ScheduleError(f"{verb} when? Say either -e at=TIME or -e every=6h: {LIKE}")
    if at and not _AT.fullmatch(at):
        raise ScheduleError(
            f"at={at!r} is no time of systemd's, such as '2026-12-31 18:00': {LIKE}"
        )
    return at, seconds(every) if every else 0


def playbook_words(verb: str, target: str, inventories: Sequence[str]) -> tuple[str, ...]:
    """Give the words behind ansible-playbook."""
    where = [word for source in inventories for word in ("-i", source)]
    variable = "tpu" if verb == "delete" else "run"
    more = ["-e", f"{variable}={target}"] if target else []
    agreed = ["-e", "yes=true"] if verb == "delete" else []
    return (*where, f"playbooks/{verb}.yml", *more, *agreed)


def service(timer: Timer) -> str:
    """Write the service that the timer starts."""
    environment = "".join(
        f"Environment={_quoted(f'{name}={value}')}\n" for name, value in timer.environment
    )
    command = " ".join(_quoted(word) for word in timer.command())
    return (
        f"[Unit]\nDescription=tpufleet: {timer.verb} {timer.target}".rstrip()
        + "\nAfter=network-online.target\n\n[Service]\nType=oneshot\n"
        + f"WorkingDirectory={timer.project}\n{environment}ExecStart={command}\n"
    )


def timer_unit(timer: Timer) -> str:
    """Write the timer. A time that passed while the controller was off is made up for."""
    when = f"OnCalendar={timer.at}\nPersistent=true\n"
    if timer.every:
        # From one start to the next, as cron has it; one that takes longer delays the next.
        when = f"OnActiveSec=1s\nOnUnitActiveSec={timer.every}s\n"
    return (
        f"[Unit]\nDescription=tpufleet: {timer.verb} {timer.target}".rstrip()
        + f"\n\n[Timer]\n{when}AccuracySec=1s\n\n[Install]\nWantedBy=timers.target\n"
    )


def cron_line(timer: Timer) -> str:
    """Write a crontab's line, for a controller without systemd. Raises ScheduleError."""
    if not timer.every:
        raise ScheduleError(
            "a time (at=) needs systemd, and this controller has none: schedule it on one that "
            f"has (docs/controller.md), or call ansible-playbook playbooks/{timer.verb}.yml then"
        )
    times = cron_times(timer.every)
    if not times:
        what = "watch=1m" if timer.verb == "watch" else f"{timer.verb}={timer.target} -e every=6h"
        raise ScheduleError(
            f"cron can't come each {timer.every} s, but in minutes that divide an hour, hours that "
            "divide a day, or 1d, and there is no systemd here: "
            f"ansible-playbook playbooks/schedule.yml -e {what}"
        )
    settings = [f"{name}={value}" for name, value in timer.environment]
    words = shlex.join(["env", *settings, *timer.command()]).replace("%", r"\%")
    return f"{times} cd {shlex.quote(timer.project)} && {words} >/dev/null 2>&1 # {timer.name}"


def cron_times(every: int) -> str:
    """Give the five fields of crontab(5) that come each so many seconds; none where none do.

    Minutes begin anew with each hour and hours with each day, so that others would come unevenly.
    """
    minutes, rest = divmod(every, 60)
    if rest or not minutes:
        return ""
    if minutes < 60:
        return f"*/{minutes} * * * *" if 60 % minutes == 0 else ""
    hours, rest = divmod(minutes, 60)
    if rest or 24 % hours:
        return ""
    return f"0 */{hours} * * *" if hours < 24 else "0 0 * * *"


def cron_listing(line: str) -> str:
    """Say of a timer's line when it comes, and its name."""
    return f"{' '.join(line.split()[:5])}  {line.rpartition(' # ')[2]}"


def with_line(crontab: str, name: str, line: str) -> str:
    """Put a timer's line into a crontab, in the old one's place; an empty line takes it away."""
    kept = [old for old in crontab.splitlines() if not old.endswith(f" # {name}")]
    return "".join(f"{each}\n" for each in [*kept, *([line] if line else [])])


def _quoted(word: str) -> str:
    """Quote a word for a unit's line (systemd.service(5), "COMMAND LINES")."""
    if re.fullmatch(r"[A-Za-z0-9_./:=@,+-]+", word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
