"""What setup would do on a worker, as one hash: its roles, the modules they use, and the values of
their variables there. Runs on the controller."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import yaml

PLUGINS = Path(__file__).parents[2]
_MODULE = re.compile(r"^\s*tpufleet\.core\.(\w+):", re.MULTILINE)
_IMPORT = re.compile(r"^from (\.+)([\w.]*) import", re.MULTILINE)


def content_of(
    roles: Iterable[Path],
    value: Callable[[str], Any],
    project: Path,
    plugins: Path = PLUGINS,
    uncounted: Collection[str] = (),
) -> str:
    """Hash what the roles (directories) would do, where ``value`` gives a variable's value; but
    for the variables ``uncounted``, which may change without anything to be done for them.

    A variable that is a file of the controller's counts by what is in it, and where the project
    lies doesn't count: two controllers agree.
    """
    digest = hashlib.sha256()
    files: dict[str, bytes] = {}
    names: list[str] = []
    for role in sorted(roles):
        for path in sorted(path for path in role.rglob("*") if path.is_file()):
            if path.name != "README.md" and "__pycache__" not in path.parts:
                files[f"{role.name}/{path.relative_to(role)}"] = path.read_bytes()
        names += variables_of(role)
    tasks = b"\n".join(files.values()).decode(errors="replace")
    for path in plugins_of(_MODULE.findall(tasks), plugins):
        files[f"plugins/{path.relative_to(plugins)}"] = path.read_bytes()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    for name in sorted(set(names) - set(uncounted)):
        told = json.dumps(settled(value(name), project), sort_keys=True, default=str)
        digest.update(f"{name}={told}\n".encode())
    return digest.hexdigest()


def variables_of(role: Path) -> list[str]:
    """Name the variables that a role has defaults for."""
    defaults = role / "defaults/main.yml"
    return sorted(yaml.safe_load(defaults.read_text()) or {}) if defaults.is_file() else []


def plugins_of(modules: Iterable[str], plugins: Path) -> list[Path]:
    """Find the files of the modules, of their controller's parts, and of all that these import."""
    waiting = [plugins / kind / f"{name}.py" for name in modules for kind in ("modules", "action")]
    found: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        for dots, name in _IMPORT.findall(path.read_text(encoding="utf-8")):
            waiting.append(path.parents[len(dots) - 1] / f"{name.replace('.', '/')}.py")
    return sorted(found)


def settled(value: Any, project: Path) -> Any:
    """Put a file's hash in the place of its path, and take the project's own place out."""
    if isinstance(value, dict):
        return {str(key): settled(part, project) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [settled(part, project) for part in value]
    if isinstance(value, str):
        path = Path(value)
        if value.startswith("/") and len(value) < 4096 and project in path.resolve().parents:
            if path.is_file():
                return hashlib.sha256(path.read_bytes()).hexdigest()
            return str(path.resolve().relative_to(project))
    return value
