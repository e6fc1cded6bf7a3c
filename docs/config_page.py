"""Reference page of the keys of the trainer's config, from its dataclasses and docstrings.

A Sphinx extension that writes ``docs/reference/config.md`` before a build.
"""

import ast
import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from train.core.config import Config
from train.strict import allowed_text

PAGE = Path(__file__).resolve().parent / "reference/config.md"


def setup(app: Any) -> dict[str, bool]:
    """Register a hook by which Sphinx writes the page before it reads the sources."""
    app.connect("config-inited", lambda *_: write_page())
    return {"parallel_read_safe": True}


def write_page() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


def page() -> str:
    """Return the text of the page."""
    return "\n\n".join(["# Config of the trainer", *_parts(Config(), "")]) + "\n"


def _parts(section: Any, prefix: str) -> Iterator[str]:
    """Yield the Markdown of a section: its description, its keys, and then its subsections."""
    yield _markdown(inspect.getdoc(type(section)) or "")
    hints = typing.get_type_hints(type(section), include_extras=True)
    meanings = docstrings(type(section))
    rows, inner = ["| name | value | description |", "|---|---|---|"], []
    for field in dataclasses.fields(section):
        name, value = field.name, getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            inner.append((name, value))
        else:
            meaning = f"{meanings.get(name, '')} (default ``{_default(value)}``)".strip()
            cell = _markdown(meaning).replace("|", "\\|").replace("\n", " ")
            rows.append(f"| `{prefix}{name}` | {allowed_text(hints[name])} | {cell} |")
    yield "\n".join(rows)
    for name, value in inner:
        yield f"## {prefix}{name}"
        yield from _parts(value, f"{prefix}{name}.")


def docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, including inherited fields."""
    found = {}
    for each in reversed(kind.__mro__[:-1]):
        [definition] = ast.parse(inspect.getsource(each)).body
        for field, below in pairwise(definition.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


def _default(value: Any) -> str:
    return value if isinstance(value, str) and value.strip() else json.dumps(value)


def _markdown(docstring: str) -> str:
    return docstring.replace("``", "`")
