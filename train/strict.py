"""Strict parsing of YAML into frozen dataclasses: unknown keys and wrong types are errors.

Every error is one line with the key and what is allowed.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml


class ConfigError(Exception):
    """Invalid configuration; the message is one line with the key and what is allowed."""


@dataclass(frozen=True)
class Bound:
    """Limits of a number, inclusive; with ``above``, the number must exceed ``minimum``."""

    minimum: float = -math.inf
    maximum: float = math.inf
    above: bool = False

    def holds(self, value: float) -> bool:
        """Return whether ``value`` is within the limits; NaN never is."""
        return self.minimum <= value <= self.maximum and not (self.above and value == self.minimum)

    def __str__(self) -> str:
        low = f"above {self.minimum}" if self.above else f"of at least {self.minimum}"
        return low if self.maximum == math.inf else f"{low} and at most {self.maximum}"


def read(path: Path) -> dict[str, Any]:
    """Read a YAML file as a mapping, {} if empty; raises ConfigError for any other content."""
    try:
        content = path.read_bytes()
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read: {err.strerror}") from err
    tree = _parsed(content, str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values, not {_describe(tree)}")
    return tree


def overlay(tree: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of ``tree`` with the overrides ``a.b=value`` applied in order."""
    tree = dict(tree)
    for override in overrides:
        dotted, equals, text = override.partition("=")
        if not equals or not dotted:
            raise ConfigError(f"{override}: must be key=value, for example steps=100")
        value = _parsed(text, dotted)
        *sections, key = dotted.split(".")
        node = tree
        for name in sections:
            section_tree = node.get(name)
            node[name] = dict(section_tree) if isinstance(section_tree, dict) else {}
            node = node[name]
        node[key] = value
    return tree


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses repeated keys; PyYAML would silently use the last value."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if (key.tag, str(key.value)) in keys:
                problem = f"key {key.value} is repeated"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            keys.add((key.tag, str(key.value)))
        return node


def _parsed(content: bytes | str, source: str) -> Any:
    """Parse YAML; raises ConfigError, whose message begins with ``source``, if it is invalid."""
    try:
        return _Loader(content).get_single_data()
    except Exception as err:  # PyYAML also raises ValueError, RecursionError and other errors
        reason = " ".join(str(err).split())
        quotes = """Put special characters in quotes: "*.txt", in an override '"*.txt"'"""
        raise ConfigError(f"{source}: invalid YAML: {reason}. {quotes}") from err


def section(kind: type, tree: Any, source: str, prefix: str) -> Any:
    """Build the dataclass ``kind``, and the dataclasses in its fields, from nested mappings.

    ``tree`` is the mapping, None for an empty one. Error messages begin with ``source`` (the file)
    and ``prefix`` (the section: "" or "model.").
    """
    if tree is None:
        tree = {}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{source}: {prefix[:-1]}: must be a mapping, not {_describe(tree)}")
    hints = typing.get_type_hints(kind, include_extras=True)
    allowed = [f.name for f in dataclasses.fields(kind)]
    for key in tree:
        if key not in allowed:
            key_text = str(key) if str(key).isprintable() else repr(key)
            raise ConfigError(
                f"{source}: {prefix}{key_text}: unknown key; allowed here: {', '.join(allowed)}"
            )
    return kind(
        **{key: _field(hints[key], value, source, prefix + key) for key, value in tree.items()}
    )


_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _field(hint: Any, value: Any, source: str, key: str) -> Any:
    """Return the value of a field if it matches the annotation ``hint``; else raise ConfigError.

    Lists become tuples, and mappings become the dataclasses that ``hint`` names. A float such as
    ``1e-3``, which YAML 1.1 reads as text, is converted.
    """
    kind, bound, optional = _read_hint(hint)
    if dataclasses.is_dataclass(kind):
        return section(kind, value, source, f"{key}.")
    if typing.get_origin(kind) is tuple and isinstance(value, list):
        inner = typing.get_args(kind)[0]
        return tuple(_field(inner, item, source, f"{key}[{i}]") for i, item in enumerate(value))
    if value is None and optional:
        return None
    if kind is float and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            value = float(value)
    if typing.get_origin(kind) is Literal:
        fits = value in typing.get_args(kind)
    else:
        fits = type(value) is kind and value != math.inf
        if kind in (int, float):
            fits = fits and bound.holds(value)
    if not fits:
        raise ConfigError(f"{source}: {key}: must be {allowed_text(hint)}, not {_describe(value)}")
    return value


def allowed_text(hint: Any) -> str:
    """Return the values that the annotation ``hint`` allows: "a whole number of at least 1"."""
    hint, bound, optional = _read_hint(hint)
    if typing.get_origin(hint) is Literal:
        return " or ".join(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        is_nested = dataclasses.is_dataclass(typing.get_args(hint)[0])
        return f"a list of {'mappings' if is_nested else 'strings'}"
    return _NOUNS[hint] + (f" {bound}" if bound != Bound() else "") + " or null" * optional


def _read_hint(hint: Any) -> tuple[Any, Bound, bool]:
    """Return the plain type of the annotation ``hint``, its limits, and whether null is allowed."""
    bound, optional = Bound(), False
    while True:
        hint = getattr(hint, "__value__", hint)
        if typing.get_origin(hint) is Annotated:
            hint, bound = typing.get_args(hint)
        elif typing.get_origin(hint) in (types.UnionType, typing.Union):
            hint, optional = typing.get_args(hint)[0], True
        else:
            return hint, bound, optional


def _describe(value: Any) -> str:
    text = " ".join(str(value).split())
    return f"{type(value).__name__} {text[:40]!r}"


def match_names(patterns: Iterable[str], names: Iterable[str], key: str) -> list[str]:
    """Return the names that match any of the patterns (``*``, ``?``, ``[…]``), sorted.

    Raises ConfigError, whose message begins with ``key``, for a pattern that matches no name.
    """
    names = sorted(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"{key}: {pattern!r} matches nothing; allowed: {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, p) for p in patterns)]
