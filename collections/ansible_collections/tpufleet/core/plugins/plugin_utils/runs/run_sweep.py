"""Parser of sweep files: one run for each TPU, each with its own overrides.

The file is a YAML list. An entry may have ``set`` (a mapping, or a list of key=value), ``name``
(the suffix of the run's name; by default the TPU's name), ``tpu`` (the TPU to run on) and ``env``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ...module_utils.worker.run import RunError, check_name

KEYS = ("set", "name", "tpu", "env")


@dataclass(frozen=True)
class Trial:
    """One entry of a sweep file; ``line`` is its line number.

    ``overrides`` are its ``set`` as key=value; ``name``, ``tpu`` and ``env`` are its other keys.
    """

    line: int
    overrides: tuple[str, ...] = ()
    name: str = ""
    tpu: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def read_sweep(path: Path) -> list[Trial]:
    """Return the entries of a sweep file. Raises RunError with the file, line and key."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"the sweep {path} can't be read: {error}. {fix_text(path)}") from error
    except yaml.YAMLError as error:
        raise RunError(
            f"the sweep {path} is not YAML ({yaml_error_text(error)}). {fix_text(path)}"
        ) from error
    if not isinstance(root, yaml.SequenceNode) or not root.value:
        raise RunError(
            f"the sweep {path} is not a list of runs (expected '- set: {{key: value}}' for each). "
            f"{fix_text(path)}"
        )
    trials = [_trial(path, node) for node in root.value]
    for key in ("name", "tpu"):
        lines: dict[str, int] = {}
        for trial in trials:
            value = getattr(trial, key)
            if value and value in lines:
                raise _sweep_error(
                    path, trial.line, f"{key} {value} is already used in line {lines[value]}"
                )
            lines[value] = trial.line
    return trials


def assigned(trials: Sequence[Trial], tpus: Sequence[str], path: Path) -> dict[str, Trial]:
    """Return the sweep entry of each TPU.

    This is the entry whose ``tpu`` names the TPU, otherwise the next entry without ``tpu``.
    ``path`` is the sweep file, for errors. Raises RunError.
    """
    if len(trials) != len(tpus):
        raise RunError(
            f"the sweep {path} has {len(trials)} runs and {len(tpus)} TPUs are selected "
            f"({', '.join(tpus)}), but each run needs one TPU. Select TPUs with --limit, or create "
            "more: ansible-playbook playbooks/create.yml"
        )
    for trial in trials:
        if trial.tpu and trial.tpu not in tpus:
            raise _sweep_error(
                path,
                trial.line,
                f"tpu {trial.tpu} is not a selected TPU ({', '.join(tpus)})",
            )
    named = {trial.tpu: trial for trial in trials if trial.tpu}
    without_tpu = iter([trial for trial in trials if not trial.tpu])
    return {tpu: named.get(tpu) or next(without_tpu) for tpu in tpus}


def _trial(path: Path, node: yaml.Node) -> Trial:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise _sweep_error(
            path, line, "expected 'set: {key: value}', and optionally name, tpu and env"
        )
    entry: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, key_line = key_node.value, key_node.start_mark.line + 1
        if key not in KEYS:
            raise _sweep_error(path, key_line, f"unknown key {key!r} (expected {', '.join(KEYS)})")
        if key in entry:
            raise _sweep_error(path, key_line, f"{key} is given twice")
        entry[key] = (_value(value_node), value_node.start_mark.line + 1)
    overrides = _overrides(path, *entry.get("set", ({}, line)))
    env, env_line = entry.get("env", ({}, line))
    if not isinstance(env, dict) or any(isinstance(value, dict | list) for value in env.values()):
        raise _sweep_error(path, env_line, "env is not a mapping of names to values")
    name, name_line = entry.get("name", ("", line))
    if name != "":
        try:
            name = check_name(str(name))
        except RunError as error:
            raise _sweep_error(path, name_line, str(error)) from None
    variables = {str(key): "" if value is None else str(value) for key, value in env.items()}
    return Trial(line, overrides, str(name), str(entry.get("tpu", ("", line))[0] or ""), variables)


def _overrides(path: Path, values: Any, line: int) -> tuple[str, ...]:
    if isinstance(values, dict):
        return tuple(f"{key}={_value_text(value)}" for key, value in values.items())
    if isinstance(values, list):
        for override in values:
            if not isinstance(override, str) or "=" not in override.strip("="):
                raise _sweep_error(path, line, f"set: {override!r} is not key=value")
        return tuple(values)
    raise _sweep_error(path, line, "set is neither a mapping nor a list of key=value")


def _value_text(value: Any) -> str:
    """Format the value of an override: strings unchanged, other values as JSON (valid YAML)."""
    return value if isinstance(value, str) else json.dumps(value)


def _value(node: yaml.Node) -> Any:
    return yaml.load(yaml.serialize(node), Loader=yaml.SafeLoader)


def _sweep_error(path: Path, line: int, problem: str) -> RunError:
    return RunError(f"the sweep {path}, line {line}: {problem}: {fix_text(path)}")


def yaml_error_text(error: yaml.YAMLError) -> str:
    """Format a YAML error as one line with the line number in the file."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"line {mark.line + 1}: {problem}" if mark and problem else " ".join(str(error).split())


def fix_text(path: Path, name: str = "sweep") -> str:
    """Return the end of an error about an invalid file: how to fix it and launch again.

    ``name`` is the Ansible variable that has ``path`` as its value.
    """
    return f"Fix it, then run: ansible-playbook train.yml -e {name}={path}"
