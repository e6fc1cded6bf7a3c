"""What the doctor found, a line each. Pure; Python 3.9, since workers are looked at as well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OK = "ok"
MEND = "mend"
UNSEEN = "unseen"
_WORDS = {OK: "ok  ", MEND: "MEND", UNSEEN: "?   "}


@dataclass(frozen=True)
class Finding:
    """One thing looked at: how it stands (OK, MEND or UNSEEN), what was seen, what mends it."""

    check: str
    state: str
    said: str
    mend: str = ""

    @property
    def line(self) -> str:
        """Say it for people, on one line."""
        text = f"{_WORDS[self.state]} {self.check}: {self.said}"
        return " ".join((f"{text}: {self.mend}" if self.mend else text).split("\n"))


def ok(check: str, said: str) -> Finding:
    """Give a thing that is as it should be."""
    return Finding(check, OK, said)


def mend(check: str, said: str, by: str = "") -> Finding:
    """Give a thing that is not as it should be; ``by`` is the command, or the words hold it."""
    return Finding(check, MEND, said, by)


def unseen(check: str, why: str) -> Finding:
    """Give a thing that could not be looked at, because of another one."""
    return Finding(check, UNSEEN, why)


def told(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Give findings as a module's result holds them."""
    return [
        {"check": each.check, "state": each.state, "said": each.said, "mend": each.mend}
        for each in findings
    ]


def untold(results: Iterable[Mapping[str, str]]) -> list[Finding]:
    """Read them back."""
    return [Finding(**{key: str(value) for key, value in each.items()}) for each in results]


def verdict(findings: Iterable[Finding]) -> str:
    """Count what has to be mended: ``2 things to mend``."""
    count = sum(each.state == MEND for each in findings)
    return f"{count or 'no'} thing{'' if count == 1 else 's'} to mend"
