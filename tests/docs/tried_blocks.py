"""Command blocks of the documentation that are marked as tried, and how each is tried.

A mark is a comment on the line above a block::

    <!-- tried: alone -->             run as it is, in the project's root
    <!-- tried: emulator, exit 2 -->  run with the local cloud's API, where the TPU demo is READY
    <!-- tried: empty emulator -->    the same without a TPU
    <!-- tried: preempted emulator --> the same; demo is preempted and had the run shakespeare
    <!-- tried: tests/journey/test_journey.py -->   that test runs each of its commands

A command follows ``$``; its output is below, lines in order. Numbers may differ, and ``…`` matches
anything.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness.playbooks import ROOT

MARKED = re.compile(
    r"^<!-- tried: (?P<by>[^,\n]+?)(?:, exit (?P<code>\d+))? -->\n```[^\n]*\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"^<!-- tried:", re.MULTILINE)
PLAYING = {"play", "must_play", "playbook"}
NUMBER = re.compile(r"\d+(?:\\?\.\d+)*")


@dataclass(frozen=True)
class Block:
    """A marked block: its location, what tries it, and its commands with their output."""

    where: str
    by: str
    code: int
    steps: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(command for command, _ in self.steps)


def documents() -> list[Path]:
    """Return the pages that are not generated."""
    made = ROOT / "docs/reference"
    pages = [page for page in (ROOT / "docs").rglob("*.md") if made not in page.parents]
    return [ROOT / "README.md", *sorted(pages)]


def blocks() -> list[Block]:
    """Return all marked blocks. Raises ValueError for a mark without a block."""
    found = []
    for page in documents():
        text = page.read_text()
        here = list(MARKED.finditer(text))
        if len(here) != len(MARK.findall(text)):
            raise ValueError(f"{page.name}: a mark without a block")
        for match in here:
            line = text[: match.start()].count("\n") + 1
            steps = tuple(_steps(match["body"]))
            where = f"{page.relative_to(ROOT)}:{line}"
            found.append(Block(where, match["by"], int(match["code"] or 0), steps))
    return found


def _steps(body: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    lines = body.splitlines()
    if not any(line.startswith("$ ") for line in lines):
        yield from ((line.partition("  #")[0].strip(), ()) for line in lines if line.strip())
        return
    command, output = "", []
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield command, tuple(output)
            command, output = line[2:], []
        elif line.strip():
            output.append(line)
    yield command, tuple(output)


def missing_lines(output: str, expected: tuple[str, ...]) -> list[str]:
    """Return the expected lines that the output does not have in this order, except numbers."""
    rest = [line.rstrip() for line in output.splitlines()]
    missing = []
    for line in expected:
        pattern = NUMBER.sub(r"[\\d.]+", re.escape(line.rstrip())).replace("…", ".*")
        pattern = re.sub(r"(?:\\ )+", r"\\s+", pattern)
        at = next((n for n, one in enumerate(rest) if re.fullmatch(pattern, one)), None)
        if at is None:
            missing.append(line)
        else:
            rest = rest[at + 1 :]
    return missing


def playbook_arguments(command: str) -> list[str]:
    """Return the arguments of ansible-playbook, without the inventory."""
    words = shlex.split(command)
    if words[0] != "ansible-playbook":
        raise ValueError(f"other tests run only playbooks: {command}")
    if "-i" in words:
        at = words.index("-i")
        del words[at : at + 2]
    return words[1:]


def playbook_calls(file: Path) -> list[list[str]]:
    """Return the playbook calls of a test as patterns of arguments; computed parts are ``*``."""
    tree = ast.parse(file.read_text())
    names = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else None
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called in PLAYING:
            words = [word for each in node.args for word in _patterns(each, names)]
            first = next((n for n, word in enumerate(words) if word.endswith(".yml")), None)
            calls += [words[first:]] if first is not None else []
    return calls


def _patterns(node: ast.expr, names: dict[str, ast.expr]) -> list[str]:
    if isinstance(node, ast.Starred):
        value = names.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
        several = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        return [word for each in several for word in _patterns(each, names)]
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in node.values)]
    return ["*"]


def matches(call: list[str], words: list[str]) -> bool:
    """Return whether a call has all arguments of the command."""
    if call[0] != words[0]:
        return False
    return all(any(fnmatchcase(word, one) for one in call[1:] if one != "*") for word in words[1:])
