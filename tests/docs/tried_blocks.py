"""Command blocks of the documentation, and the marks that tell how each is tried.

A mark is a comment on the line above a block::

    <!-- tried: alone -->               run unchanged, in the project's root
    <!-- tried: emulator -->            run with the local cloud's API, where the TPU demo is READY
    <!-- tried: emulator, exit 2 -->    the same, expecting exit code 2
    <!-- tried: empty emulator -->      run with the API, without a TPU
    <!-- tried: foreign emulator -->    run with the API; demo has no label of a fleet
    <!-- tried: preempted emulator -->  run with the API; demo, of the run shakespeare, is PREEMPTED
    <!-- tried: tests/journey/test_journey.py -->   that test file runs each of the commands

    <!-- not tried: it needs a Google Cloud project -->   the reason why no test runs the block

A command follows ``$``. The lines below it must be in its output, in this order. Numbers may
differ, and ``…`` matches anything.
"""

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness.playbooks import ROOT

MARKED = re.compile(
    r"^ *<!-- tried: (?P<by>[^,\n]+?)(?:, exit (?P<code>\d+))? -->\n"
    r" *```[^\n]*\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"^ *<!-- tried:", re.MULTILINE)
UNMARKED = re.compile(
    r"^(?! *<!-- (?:not )?tried: \S).*\n *```[^\n]*\n(?P<body>[^`]*?)^ *```$", re.MULTILINE
)
COMMAND = re.compile(
    r"^ *(?:\$ |ansible|make |python |gcloud |export |requirements/|\.venv)", re.MULTILINE
)
PLAYING = {"play", "refused", "must_play", "playbook", "must_run", "command", "run"}
_FIRST = re.compile(r"ansible(?:-\w+)?|.+\.yml")
NUMBER = re.compile(r"\d+(?:\\?\.\d+)*")


@dataclass(frozen=True)
class Block:
    """A marked block.

    ``where`` is its location, ``by`` the part of the mark after ``tried:``, ``code`` the expected
    exit code, and ``steps`` are the commands, each with the lines of its output.
    """

    where: str
    by: str
    code: int
    steps: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(command for command, _ in self.steps)


def documents() -> list[Path]:
    """Return the pages that are not generated."""
    generated = ROOT / "docs/reference"
    pages = [page for page in (ROOT / "docs").rglob("*.md") if generated not in page.parents]
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


def unmarked() -> list[str]:
    """Return the locations of command blocks without a mark."""
    return [
        f"{page.relative_to(ROOT)}:{text[: found.start()].count(chr(10)) + 2}"
        for page in documents()
        for text in [page.read_text()]
        for found in UNMARKED.finditer(text)
        if COMMAND.search(found["body"])
    ]


def _steps(body: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    lines = textwrap.dedent(body).splitlines()
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
    """Return the expected lines that are not in the output in this order. Numbers may differ."""
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


def arguments(command: str) -> list[str]:
    """Return a command's words without ``-i INVENTORY`` and ``ansible-playbook``."""
    words = shlex.split(command)
    if "-i" in words:
        at = words.index("-i")
        del words[at : at + 2]
    return words[1:] if words[0] == "ansible-playbook" else words


def calls_of(file: Path) -> list[list[str]]:
    """Return the arguments of each command in a test file; computed parts are ``*``."""
    tree = ast.parse(file.read_text())
    everywhere = dict(_assigned(tree))
    calls = []
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef):
            names = everywhere | dict(_assigned(scope))
            calls += [call for node in ast.walk(scope) if (call := _called(node, names))]
    return calls


def _called(node: ast.AST, names: dict[str, ast.expr]) -> list[str]:
    if not isinstance(node, ast.Call):
        return []
    called = getattr(node.func, "attr", getattr(node.func, "id", None))
    if called not in PLAYING:
        return []
    words = [word for each in node.args for word in _patterns(each, names)]
    first = next((n for n, word in enumerate(words) if _FIRST.fullmatch(word)), len(words))
    return words[first:]


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield each variable that is assigned in a syntax tree, with the assigned expression."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def _patterns(node: ast.expr, names: dict[str, ast.expr]) -> list[str]:
    if isinstance(node, ast.Starred):
        value: ast.expr | None = node.value
        if isinstance(value, ast.Name):
            name, value = value.id, names.get(value.id)
            # Remove this name, because a variable may be assigned from itself: x = (*x, "more").
            names = {other: each for other, each in names.items() if other != name}
        several = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        return [word for each in several for word in _patterns(each, names)]
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in node.values)]
    return ["*"]


def matches(call: list[str], words: list[str]) -> bool:
    """Return whether a call in a test has all arguments of a documented command (``words``)."""
    if call[0] != words[0]:
        return False
    given = [one for one in call[1:] if one != "*"]
    return all(any(word == one or fnmatchcase(word, one) for one in given) for word in words[1:])
