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
import functools
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeGuard

from harness.playbooks import ROOT

MARKED_BLOCK = re.compile(
    r"^ *<!-- tried: (?P<by>[^,\n]+?)(?:, exit (?P<code>\d+))? -->\n"
    r" *```[^\n]*\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
TRIED_MARK = re.compile(r"^ *<!-- tried:", re.MULTILINE)
UNMARKED_BLOCK = re.compile(
    r"^(?! *<!-- (?:not )?tried: \S).*\n *```[^\n]*\n(?P<body>[^`]*?)^ *```$", re.MULTILINE
)
COMMAND_LINE = re.compile(
    r"^ *(?:\$ |ansible|make |python |gcloud |export |requirements/|\.venv)", re.MULTILINE
)
RUN_FUNCTIONS = {
    "play",
    "output_of",
    "error_of",
    "must_play",
    "playbook",
    "must_run",
    "command",
    "run",
}
_FIRST = re.compile(r"ansible(?:-\w+)?|.+\.yml")
_MAY_RUN = re.compile(r"""["']ansible|\.yml["']""")
NUMBER = re.compile(r"\d+(?:\\?\.\d+)*")


@dataclass(frozen=True)
class Block:
    """A marked block.

    ``by`` is the part of the mark after ``tried:``, ``code`` the expected exit code, and
    ``steps`` are the commands, each with the lines of its output.
    """

    location: str
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
    marked_blocks = []
    for page in documents():
        text = page.read_text()
        matches = list(MARKED_BLOCK.finditer(text))
        if len(matches) != len(TRIED_MARK.findall(text)):
            raise ValueError(
                f"{page.relative_to(ROOT)}: a mark (<!-- tried: … -->) is not on the line above a "
                "code block. Move it there or remove it"
            )
        for match in matches:
            line = text[: match.start()].count("\n") + 1
            steps = tuple(_steps(match["body"]))
            location = f"{page.relative_to(ROOT)}:{line}"
            marked_blocks.append(Block(location, match["by"], int(match["code"] or 0), steps))
    return marked_blocks


def unmarked() -> list[str]:
    """Return the locations of command blocks without a mark."""
    return [
        f"{page.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 2}"
        for page in documents()
        for text in [page.read_text()]
        for match in UNMARKED_BLOCK.finditer(text)
        if COMMAND_LINE.search(match["body"])
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
        index = next(
            (n for n, output_line in enumerate(rest) if re.fullmatch(pattern, output_line)), None
        )
        if index is None:
            missing.append(line)
        else:
            rest = rest[index + 1 :]
    return missing


def arguments(command: str) -> list[str]:
    """Return a command's arguments without ``ansible-playbook`` and ``-i INVENTORY``."""
    split_command = shlex.split(command)
    if "-i" in split_command:
        index = split_command.index("-i")
        del split_command[index : index + 2]
    return split_command[1:] if split_command[0] == "ansible-playbook" else split_command


@functools.cache
def calls_of(file: Path) -> list[list[str]]:
    """Return the arguments of each command in a test file; computed parts are ``*``."""
    text = file.read_text()
    if not _MAY_RUN.search(text):
        return []
    tree = ast.parse(text)
    everywhere = dict(_assigned(tree))
    calls = []
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef):
            run_calls = [node for node in ast.walk(scope) if _is_run_call(node)]
            names = everywhere | dict(_assigned(scope)) if run_calls else {}
            calls += [call for node in run_calls if (call := _called(node, names))]
    return calls


def _is_run_call(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", None)) in RUN_FUNCTIONS


def _called(node: ast.Call, names: dict[str, ast.expr]) -> list[str]:
    patterns = [pattern for argument in node.args for pattern in _patterns(argument, names)]
    first = next(
        (n for n, pattern in enumerate(patterns) if _FIRST.fullmatch(pattern)), len(patterns)
    )
    return patterns[first:]


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
            # Remove the name, to end the recursion if a variable is assigned from itself:
            # x = (*x, "more").
            names = {other: element for other, element in names.items() if other != name}
        elements = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        return [pattern for element in elements for pattern in _patterns(element, names)]
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in node.values)]
    return ["*"]


def matches(call: list[str], command: list[str]) -> bool:
    """Return whether a call in a test has all arguments of a documented command."""
    if call[0] != command[0]:
        return False
    patterns = [pattern for pattern in call[1:] if pattern != "*"]
    return all(
        any(argument == pattern or fnmatchcase(argument, pattern) for pattern in patterns)
        for argument in command[1:]
    )
