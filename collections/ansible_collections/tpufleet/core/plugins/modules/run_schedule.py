#!/usr/bin/python
"""Let the controller's timers do a verb at a time or again and again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_schedule
short_description: Let the controller's timers run a playbook at a time, or again and again
description:
  - Writes a systemd timer of the controller's (of root's, or of the user's own where it is not
    root), or a line of the user's crontab where there is no systemd.
  - All timers share one lock. A watch gives way to what is at work; the others wait for it.
options:
  state:
    description: What to do; V(list) changes nothing.
    type: str
    choices: [present, absent, list]
    default: list
  verb:
    description: C(watch), C(kill), C(restart) or C(delete).
    type: str
    default: watch
  target:
    description: The run, or the TPU for C(delete). Empty for a watch of all.
    type: str
    default: ""
  name:
    description: A timer's name as RV(timers) gives it, to be taken away.
    type: str
    default: ""
  at:
    description: A time as systemd.time(7) has it.
    type: str
    default: ""
  every:
    description: A span, such as V(1m) or V(6h), from one start to the next; one that takes longer
      delays the next. cron keeps minutes that divide an hour, hours that divide a day, and V(1d);
      another is refused where there is no systemd.
    type: str
    default: ""
  project:
    description: The project's root.
    type: path
    required: true
  tool:
    description: Where ansible-playbook is.
    type: path
    required: true
  inventories:
    description: The inventories to use.
    type: list
    elements: str
    default: []
  environment:
    description: Environment variables that the playbook needs; empty ones are left out. Nothing
      secret.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Look at the runs every minute
  tpufleet.core.run_schedule:
    state: present
    verb: watch
    every: 1m
    project: "{{ playbook_dir }}/.."
    tool: /usr/bin/ansible-playbook
"""

RETURN = r"""
timers:
  description: The names of all timers as they are afterwards.
  returned: success
  type: list
  elements: str
lines:
  description: What systemd says of them, or the crontab's times and their names.
  returned: success
  type: list
  elements: str
"""

import os
import shutil
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.run_schedule import (
    PREFIX,
    ScheduleError,
    Timer,
    check,
    cron_line,
    cron_listing,
    playbook_words,
    service,
    timer_unit,
    with_line,
)


def run(words: list[str], given: str | None = None) -> str:
    """Run a program of the controller's. Raises ScheduleError with its first line."""
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ScheduleError(f"{' '.join(words[:3])}: {said[0] if said else done.returncode}")
    return done.stdout


class Systemd:
    """Timers as units."""

    def __init__(self) -> None:
        self.own = os.getuid() != 0
        home = Path.home() / ".config/systemd/user"
        self.folder = home if self.own else Path("/etc/systemd/system")
        self.tool = ["systemctl", "--user"] if self.own else ["systemctl"]

    def names(self) -> list[str]:
        """Name the timers."""
        return sorted(path.stem for path in self.folder.glob(f"{PREFIX}*.timer"))

    def lines(self) -> list[str]:
        """Say when each is due."""
        if not self.names():
            return []
        asked = [*self.tool, "list-timers", "--all", "--full", "--no-pager", f"{PREFIX}*"]
        return [line.rstrip() for line in run(asked).splitlines() if line.strip()][:-1]

    def put(self, timer: Timer, dry: bool) -> tuple[str, str]:
        """Have a timer; give the units' texts before and after."""
        if timer.at:
            told = run(["systemd-analyze", "calendar", timer.at])
            if "Next elapse: never" in told:
                raise ScheduleError(f"at={timer.at!r} is over already")
        texts = {".service": service(timer), ".timer": timer_unit(timer)}
        before = "".join(self._text(timer.name + end) for end in texts)
        after = "".join(texts.values())
        if before != after and not dry:
            self.folder.mkdir(parents=True, exist_ok=True)
            for end, text in texts.items():
                (self.folder / (timer.name + end)).write_text(text, encoding="utf-8")
            run([*self.tool, "daemon-reload"])
            run([*self.tool, "enable", "--now", f"{timer.name}.timer"])
            run([*self.tool, "restart", f"{timer.name}.timer"])
        return before, after

    def drop(self, name: str, dry: bool) -> tuple[str, str]:
        """Take a timer away; what it has started goes on."""
        before = self._text(f"{name}.service") + self._text(f"{name}.timer")
        if before and not dry:
            run([*self.tool, "disable", "--now", f"{name}.timer"])
            for end in (".timer", ".service"):
                (self.folder / (name + end)).unlink(missing_ok=True)
            run([*self.tool, "daemon-reload"])
        return before, ""

    def _text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""


class Cron:
    """Timers as lines of the user's crontab."""

    def names(self) -> list[str]:
        """Name the timers."""
        ends = [line.rpartition(" # ")[2] for line in self._table().splitlines()]
        return sorted(end for end in ends if end.startswith(PREFIX))

    def lines(self) -> list[str]:
        """Say when each comes."""
        lines = [line for line in self._table().splitlines() if f" # {PREFIX}" in line]
        return [cron_listing(line) for line in lines]

    def put(self, timer: Timer, dry: bool) -> tuple[str, str]:
        """Have a timer; give the crontab before and after."""
        return self._change(timer.name, cron_line(timer), dry)

    def drop(self, name: str, dry: bool) -> tuple[str, str]:
        """Take a timer away."""
        return self._change(name, "", dry)

    def _change(self, name: str, line: str, dry: bool) -> tuple[str, str]:
        before = self._table()
        after = with_line(before, name, line)
        if before != after and not dry:
            run(["crontab", "-"], after)
        return before, after

    @staticmethod
    def _table() -> str:
        done = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False)
        # What can't be read must not be written over.
        if done.returncode != 0 and "no crontab for" not in done.stderr:
            raise ScheduleError(f"crontab -l: {done.stderr.strip() or done.returncode}")
        return done.stdout if done.returncode == 0 else ""


def clock() -> Systemd | Cron:
    """Find what keeps the time here. Raises ScheduleError."""
    if Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        return Systemd()
    if shutil.which("crontab"):
        return Cron()
    raise ScheduleError("there is neither systemd nor cron on this controller: install cron")


def asked_timer(params: dict) -> Timer:
    """Read the timer that is asked for."""
    at, every = check(params["verb"], params["target"], params["at"], params["every"])
    return Timer(
        verb=params["verb"],
        target=params["target"],
        at=at,
        every=every,
        project=str(Path(params["project"]).resolve()),
        tool=params["tool"],
        words=playbook_words(params["verb"], params["target"], params["inventories"]),
        lock=str(Path.home() / ".cache/tpufleet.lock"),
        environment=tuple(
            sorted(
                (str(name), str(value)) for name, value in params["environment"].items() if value
            )
        ),
    )


def main() -> None:
    """Do what the state asks for."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "list"], "default": "list"},
            "verb": {"type": "str", "default": "watch"},
            "target": {"type": "str", "default": ""},
            "name": {"type": "str", "default": ""},
            "at": {"type": "str", "default": ""},
            "every": {"type": "str", "default": ""},
            "project": {"type": "path", "required": True},
            "tool": {"type": "path", "required": True},
            "inventories": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    params = module.params
    before = after = ""
    try:
        keeper = clock()
        if params["state"] == "present":
            timer = asked_timer(params)
            Path(timer.lock).parent.mkdir(parents=True, exist_ok=True)
            before, after = keeper.put(timer, module.check_mode)
        elif params["state"] == "absent":
            if params["name"] not in keeper.names():
                known = ", ".join(keeper.names()) or "none"
                raise ScheduleError(f"there is no timer {params['name']!r}; there are: {known}")
            before, after = keeper.drop(params["name"], module.check_mode)
        names, lines = keeper.names(), keeper.lines()
    except ScheduleError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(
        changed=before != after,
        timers=names,
        lines=lines,
        diff={"before": before, "after": after},
    )


if __name__ == "__main__":
    main()
