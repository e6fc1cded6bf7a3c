"""What a Linux system makes of its settings' files, by where they lie: users (sysusers.d(5)),
directories (tmpfiles.d(5)), units (systemd.unit(5)), the journal's settings (journald.conf(5)).

Standard library only; runs on workers.
"""

from __future__ import annotations

import grp
import pwd
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SystemFile:
    """A file that the system is to have."""

    path: str
    content: str
    mode: int = 0o644

    @property
    def place(self) -> str:
        """The name of the directory that it lies in."""
        return Path(self.path).parent.name

    @property
    def name(self) -> str:
        """Its own name: of a unit, the unit's."""
        return Path(self.path).name

    @property
    def is_unit(self) -> bool:
        """Whether it is a unit of systemd's."""
        return str(Path(self.path).parent).endswith("/systemd/system")

    @property
    def is_enabled(self) -> bool:
        """Whether it is a unit that is to run by itself."""
        return self.is_unit and "[Install]" in self.content.splitlines()

    def lines(self) -> Iterator[list[str]]:
        """Give the words of its lines, without comments."""
        for line in self.content.splitlines():
            if line.strip() and not line.startswith("#"):
                yield line.split()


def following(files: Sequence[SystemFile]) -> list[list[str]]:
    """Give the commands that let the system take these files, in the order of their needs."""
    paths = {
        place: [file.path for file in files if file.place == place]
        for place in ("sysusers.d", "tmpfiles.d", "journald.conf.d")
    }
    enabled = [file.name for file in files if file.is_enabled]
    commands = [
        (paths["sysusers.d"], ["systemd-sysusers", *paths["sysusers.d"]]),
        (paths["tmpfiles.d"], ["systemd-tmpfiles", "--create", *paths["tmpfiles.d"]]),
        (enabled, ["systemctl", "enable", "--quiet", "--no-reload", *enabled]),
        ([file for file in files if file.is_unit], ["systemctl", "daemon-reload"]),
        (paths["journald.conf.d"], ["systemctl", "restart", "systemd-journald.service"]),
        (enabled, ["systemctl", "restart", *enabled]),
    ]
    return [words for needed, words in commands if needed]


def undone(file: SystemFile) -> list[str]:
    """Name what the file asks for and the system has not: users, directories, running units."""
    if file.place == "sysusers.d":
        return [f"the user {name} ({uid})" for name, uid in _users(file) if not _has_user(name)]
    if file.place == "tmpfiles.d":
        return [f"the directory {words[1]}" for words in _directories(file) if not _is_made(words)]
    if file.is_enabled:
        looks = (("is-enabled", "enabled"), ("is-active", "running"))
        return [
            f"{file.name}, {state}"
            for look, state in looks
            if subprocess.run(["systemctl", "--quiet", look, file.name], check=False).returncode
        ]
    return []


def clashes(files: Iterable[SystemFile]) -> list[str]:
    """Name users whose number or name is taken: systemd-sysusers would give them another one."""
    found = []
    for file in files:
        for name, uid in _users(file) if file.place == "sysusers.d" else ():
            for kind, numbered in (("user", _users_by_name()), ("group", _groups_by_name())):
                if numbered.get(name, uid) != uid:
                    found.append(f"the {kind} {name} has the number {numbered[name]}, not {uid}")
                holders = [one for one, number in numbered.items() if number == uid and one != name]
                found += [f"the number {uid} of {name} is the {kind} {one}'s" for one in holders]
    return found


def _users(file: SystemFile) -> Iterator[tuple[str, int]]:
    for kind, name, number, *_ in file.lines():
        if kind == "u":
            yield name, int(number)


def _users_by_name() -> dict[str, int]:
    return {one.pw_name: one.pw_uid for one in pwd.getpwall()}


def _groups_by_name() -> dict[str, int]:
    return {one.gr_name: one.gr_gid for one in grp.getgrall()}


def _has_user(name: str) -> bool:
    return name in _users_by_name() and name in _groups_by_name()


def _directories(file: SystemFile) -> list[list[str]]:
    return [words for words in file.lines() if words[0] == "d"]


def _is_made(words: Sequence[str]) -> bool:
    _, path, mode, user, group = words[:5]
    try:
        seen = Path(path).lstat()
        owners = pwd.getpwuid(seen.st_uid).pw_name, grp.getgrgid(seen.st_gid).gr_name
    except (OSError, KeyError):
        return False
    right = stat.S_ISDIR(seen.st_mode) and stat.S_IMODE(seen.st_mode) == int(mode, 8)
    return right and owners == (user, group)
