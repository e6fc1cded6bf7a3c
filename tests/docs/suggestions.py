"""Commands that the project's messages and pages suggest, read from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from harness.playbooks import ROOT
from tests.docs.tried_blocks import documents

PLUGINS = ROOT / "collections/ansible_collections/tpufleet/core/plugins"
SOURCES = (PLUGINS, ROOT / "localcloud", ROOT / "train")
PLAYS = (ROOT / "playbooks", ROOT / "roles", ROOT / "inventory")
#: Placeholder in a text for a value that is known only at run time.
FILLED_IN = "FILLED_IN"
_NAMED = re.compile(r"/?(?:playbooks/)?[a-z_]+\.yml")
_PLAYBOOK = re.compile(r"(?P<tool>ansible-playbook )?(?P<path>(?:playbooks/)?[a-z_]+\.yml)\b")
_OPTION = re.compile(
    r" (?:(?P<flag>--check|--diff)|(?P<option>-e|-i|--limit|--tags) "
    r"(?P<value>(?:[a-z_]+=)?(?:'[^']*'|\"[^\"]*\")|\S+))"
)
_MAKE = re.compile(r"(?:^|: |`)make (?P<target>[a-z]+(?:-[a-z]+)*)(?=$|[.,;:)`]| &&)")
_CODE = re.compile(
    r"^```[^\n]*\n(?P<block>.*?)^```$|`(?P<inline>[^`\n]+)`", re.MULTILINE | re.DOTALL
)
_INSTALL = re.compile(r"requirements/install-(?P<kind>system|venv)(?P<sets>(?: [a-z]+)*)")


@dataclass(frozen=True)
class Text:
    """A string that a person may read, and its location."""

    location: str
    text: str


@dataclass(frozen=True)
class PlaybookCommand:
    """A playbook and its options, found in a text.

    ``is_complete`` is true if the text has ``ansible-playbook`` before the playbook.
    """

    location: str
    text: str
    is_complete: bool
    path: str
    options: tuple[tuple[str, str], ...]

    def variables(self) -> list[str]:
        """Return the names of the variables after ``-e``."""
        return [
            value.strip("'\"").partition("=")[0]
            for option, value in self.options
            if option == "-e" and not value.strip("'").startswith(("@", "{", FILLED_IN))
        ]


def texts() -> list[Text]:
    """Return every string of the code except docstrings, module documentation and comments."""
    strings = []
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            if "doc_fragments" not in path.parts:
                strings += of_python(path.read_text(), str(path.relative_to(ROOT)))
    for folder in PLAYS:
        for path in sorted(folder.rglob("*.yml")):
            if path.name != "argument_specs.yml":
                strings += of_yaml(path.read_text(), str(path.relative_to(ROOT)))
    return strings


def pages() -> list[Text]:
    """Return the code in the pages: each inline code, and each line of a code block."""
    return [
        text
        for page in documents()
        for text in of_markdown(page.read_text(), str(page.relative_to(ROOT)))
    ]


def of_markdown(source: str, location: str) -> Iterator[Text]:
    """Yield each line of the code blocks and inline code of a page.

    A line that ends with a backslash is joined with the next one.
    """
    for match in _CODE.finditer(source):
        line = source[: match.start()].count("\n") + 1
        for text in re.sub(r"\\\n\s*", "", match["block"] or match["inline"]).splitlines():
            yield Text(f"{location}:{line}", text)


def of_python(source: str, location: str) -> Iterator[Text]:
    """Yield the strings of a Python module; constants in f-strings are replaced by their values."""
    tree = ast.parse(source)
    for statement in ast.walk(tree):
        for child in ast.iter_child_nodes(statement):
            child.parent = statement  # type: ignore[attr-defined]
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
            continue
        parent = node.parent  # type: ignore[attr-defined]
        if isinstance(parent, ast.Expr | ast.JoinedStr | ast.FormattedValue | ast.BinOp):
            continue
        if isinstance(parent, ast.Assign) and _name(parent) in (
            "DOCUMENTATION",
            "EXAMPLES",
            "RETURN",
        ):
            continue
        if (text := _text(node, constants)) and re.search(r"[a-z]", text):
            yield Text(f"{location}:{node.lineno}", " ".join(text.split()))


def _name(statement: ast.Assign) -> str:
    [target, *_] = statement.targets
    return target.id if isinstance(target, ast.Name) else ""


def _text(node: Any, constants: dict[str, ast.expr], depth: int = 0) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value, constants, depth) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, constants, depth) + _text(node.right, constants, depth)
    if isinstance(node, ast.FormattedValue):
        node = node.value
    if isinstance(node, ast.Name) and node.id in constants and depth < 3:
        return _text(constants[node.id], constants, depth + 1) or FILLED_IN
    return FILLED_IN


def of_yaml(source: str, location: str) -> Iterator[Text]:
    """Yield the strings of a YAML file. Jinja expressions become FILLED_IN."""

    def strings_of(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for key, item in value.items():
                if key not in ("import_playbook", "ansible.builtin.import_playbook"):
                    yield from strings_of(item)
        elif isinstance(value, list):
            for item in value:
                yield from strings_of(item)
        elif isinstance(value, str):
            yield value

    for document in yaml.load_all(source, Loader=yaml.BaseLoader):
        for text in strings_of(document):
            plain = re.sub(r"'\s*~\s*'", "", text)
            begins_with_expression = plain.strip().startswith("{{")
            if begins_with_expression:
                yield from (Text(location, literal) for literal in re.findall(r"'([^']+)'", plain))
            filled = re.sub(r"\{\{.*?\}\}", FILLED_IN, plain, flags=re.DOTALL)
            line = " ".join(filled.split())
            if " " in line or not begins_with_expression:
                yield Text(location, line)


def playbook_commands(text: Text) -> Iterator[PlaybookCommand]:
    """Yield the playbooks that a text names, with the options that follow."""
    if _NAMED.fullmatch(text.text):
        return  # the text is only a path, not a command
    for match in _PLAYBOOK.finditer(text.text):
        options, position = [], match.end()
        while option := _OPTION.match(text.text, position):
            position = option.end()
            if option["option"]:
                options.append((option["option"], option["value"].rstrip(",.;:)")))
        yield PlaybookCommand(
            text.location, text.text, bool(match["tool"]), match["path"], tuple(options)
        )


def make_targets(text: Text) -> list[str]:
    """Return the targets of the ``make`` commands in a text."""
    return [match["target"] for match in _MAKE.finditer(text.text)]


def installers(text: Text) -> list[tuple[str, list[str]]]:
    """Return the ``requirements/install-*`` commands in a text.

    Each is a kind, ``system`` or ``venv``, and the names of the package sets to install.
    """
    return [(match["kind"], match["sets"].split()) for match in _INSTALL.finditer(text.text)]
