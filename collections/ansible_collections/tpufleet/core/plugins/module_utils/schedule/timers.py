"""Installation of timers on the controller, as systemd units or as lines of the user's crontab."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from .run_schedule import (
    CRON_PROGRAMS,
    PREFIX,
    Origin,
    ScheduleError,
    Timer,
    cron_line,
    cron_origin,
    service,
    service_origin,
    timer_unit,
)


def run(words: list[str], given: str | None = None) -> str:
    """Run a program with the text ``given`` on standard input; return its output.

    Raises ScheduleError with the first line of the program's error output.
    """
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ScheduleError(f"{words[0]}: {error.strerror}") from None
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        problem = output[0] if output else f"exit status {done.returncode}"
        raise ScheduleError(f"{' '.join(words[:3])}: {problem}")
    return done.stdout


class Systemd:
    """Timers as systemd units: system units for root, user units for any other user."""

    def __init__(self) -> None:
        is_user = os.getuid() != 0
        home = Path.home() / ".config/systemd/user"
        self.folder = home if is_user else Path("/etc/systemd/system")
        self.tool = ["systemctl", "--user"] if is_user else ["systemctl"]

    def names(self) -> list[str]:
        """Return the names of the installed timers."""
        return sorted(path.stem for path in self.folder.glob(f"{PREFIX}*.timer"))

    def lines(self) -> list[str]:
        """Return systemctl's table of the timers as lines, with the next time of each timer."""
        if not self.names():
            return []
        asked = [*self.tool, "list-timers", "--all", "--full", "--no-pager", f"{PREFIX}*"]
        return [line.rstrip() for line in run(asked).splitlines() if line.strip()][:-1]

    def interval(self, name: str) -> int:
        """Return a timer's interval in seconds; 0 for a timer with a fixed time."""
        found = re.search(r"^OnUnitActiveSec=([0-9]+)s$", self._text(f"{name}.timer"), re.MULTILINE)
        return int(found[1]) if found else 0

    def origin(self, name: str) -> Origin | None:
        """Return the checkout and the inventories of a timer; None if they are not known.

        A service unit without a timer unit is ignored: a failed installation may have left it.
        """
        return service_origin(self._text(f"{name}.service")) if name in self.names() else None

    def logs(self, name: str) -> str:
        """Return the shell command that shows a timer's status and its service's log."""
        journal = "journalctl" if self.tool == ["systemctl"] else "journalctl --user"
        return f"{' '.join(self.tool)} status {name}.timer {name}.service; {journal} -u {name}"

    def put(self, timer: Timer, dry: bool) -> tuple[str, str]:
        """Create or change a timer; return the text of its units before and after.

        With ``dry``, nothing is changed.
        """
        if timer.at:
            elapses = run(["systemd-analyze", "calendar", timer.at])
            if "Next elapse: never" in elapses:
                raise ScheduleError(f"at={timer.at!r} is in the past")
        texts = {".service": service(timer), ".timer": timer_unit(timer)}
        before = "".join(self._text(timer.name + end) for end in texts)
        after = "".join(texts.values())
        if before != after and not dry:
            is_change = bool(self._text(f"{timer.name}.timer"))
            self._stop(timer.name)
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                for end, text in texts.items():
                    (self.folder / (timer.name + end)).write_text(text, encoding="utf-8")
                run([*self.tool, "daemon-reload"])
                run([*self.tool, "enable", "--now", f"{timer.name}.timer"])
            except BaseException:
                # The installation failed: delete one of the timer's two unit files, so that the
                # next call installs the timer again. If the timer existed before, keep its .timer
                # file: then the timer is still listed, and doctor reports that it does not run.
                end = ".service" if is_change else ".timer"
                (self.folder / (timer.name + end)).unlink(missing_ok=True)
                raise
        return before, after

    def drop(self, name: str, dry: bool) -> tuple[str, str]:
        """Remove a timer; return the text of its units before and after.

        With ``dry``, nothing is changed. A playbook that the timer has already started continues.
        """
        before = self._text(f"{name}.service") + self._text(f"{name}.timer")
        if before and not dry:
            self._stop(name)
            run([*self.tool, "disable", f"{name}.timer"])
            for end in (".timer", ".service"):
                (self.folder / (name + end)).unlink(missing_ok=True)
            run([*self.tool, "daemon-reload"])
        return before, ""

    def _stop(self, name: str) -> None:
        if self._text(f"{name}.timer"):
            run([*self.tool, "stop", f"{name}.timer"])

    def _text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""


class Cron:
    """Timers as lines of the user's crontab."""

    def names(self) -> list[str]:
        """Return the names of the installed timers."""
        return sorted(self._own_lines())

    def lines(self) -> list[str]:
        """Return a line for each timer: the time fields of its crontab line, and its name."""
        own_lines = self._own_lines().items()
        return [f"{' '.join(line.split()[:5])}  {name}" for name, line in own_lines]

    def interval(self, name: str) -> int:
        """Return the seconds between a timer's starts; 0 if the crontab has no such timer."""
        fields = " ".join(self._own_lines().get(name, "").split()[:5])
        found = re.fullmatch(r"(?:\*/(\d+)|0 \*/(\d+)|0 0) \*( \*)+", fields)
        if not found:
            return 0
        return 60 * int(found[1]) if found[1] else 3600 * int(found[2] or 24)

    def origin(self, name: str) -> Origin | None:
        """Return the checkout and the inventories of a timer; None if they are not known."""
        return cron_origin(self._own_lines().get(name, ""))

    def logs(self, name: str) -> str:
        """Return the shell command that shows a timer's crontab line and its playbook's last log.

        The names of logs begin with the time (callback plugin view).
        """
        origin, verb = self.origin(name), name.removeprefix(PREFIX).partition("-")[0]
        folder = shlex.quote(f"{origin.project if origin else '.'}/.tpufleet/logs")
        return f'crontab -l | grep {name}; tail "$(ls {folder}/*-{verb}-*.log | tail -n 1)"'

    def put(self, timer: Timer, dry: bool) -> tuple[str, str]:
        """Create or change a timer, unless ``dry``; return the crontab before and after.

        Raises ScheduleError if a program that the crontab line runs is missing.
        """
        line = cron_line(timer)
        if missing := [program for program in CRON_PROGRAMS if not shutil.which(program)]:
            raise ScheduleError(
                f"timers of cron need {' and '.join(missing)}, which this controller does "
                f"not have. Install {' and '.join(CRON_PROGRAMS[program] for program in missing)}"
            )
        if not dry:
            timer.lock.parent.mkdir(parents=True, exist_ok=True)
        return self._change(timer.name, line, dry)

    def drop(self, name: str, dry: bool) -> tuple[str, str]:
        """Remove a timer, unless ``dry``; return the crontab before and after."""
        return self._change(name, "", dry)

    def _change(self, name: str, line: str, dry: bool) -> tuple[str, str]:
        """Replace the timer's line by ``line``, or remove it if ``line`` is empty."""
        before = self._table()
        lines = [old for old in before.splitlines() if not old.endswith(f" # {name}")]
        after = "".join(f"{each}\n" for each in [*lines, *([line] if line else [])])
        if before != after and not dry:
            run(["crontab", "-"], after)
        return before, after

    def _own_lines(self) -> dict[str, str]:
        """Return the lines of the crontab that are timers; keys are the timers' names."""
        lines = {line.rpartition(" # ")[2]: line for line in self._table().splitlines()}
        return {name: line for name, line in lines.items() if name.startswith(PREFIX)}

    @staticmethod
    def _table() -> str:
        done = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False)
        # Only a missing crontab counts as empty; an unreadable crontab must not be overwritten.
        if done.returncode != 0 and "no crontab for" not in done.stderr:
            problem = done.stderr.strip() or f"exit status {done.returncode}"
            raise ScheduleError(f"crontab -l: {problem}")
        return done.stdout


def keeper() -> Systemd | Cron:
    """Return Systemd if the controller has systemd, else Cron.

    Raises ScheduleError if the controller has neither systemd nor cron.
    """
    if Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        return Systemd()
    if shutil.which("crontab"):
        return Cron()
    raise ScheduleError("this controller has neither systemd nor cron. Install cron")
