"""Rendered templates and expressions, and plays that run a role on this computer."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.playbooks import play
from localcloud.local_cloud import PROJECT_ROOT

HERE = "tpu: {hosts: {localhost: {ansible_connection: local}}}\n"


def rendered(template: str, **variables: Any) -> str:
    """Render a role's template, named as ``ROLE/FILE``; return the text."""
    role, _, name = template.partition("/")
    environment = Environment(  # noqa: S701 - configuration files, not HTML
        loader=FileSystemLoader(PROJECT_ROOT / "roles" / role / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(ansible_managed="Ansible managed", **variables)


def loaded(file: str) -> Any:
    """Load a YAML file of the project whose expressions ``evaluated`` accepts."""
    return DataLoader().load_from_file(str(PROJECT_ROOT / file), trusted_as_template=True)


def evaluated(expression: str, variables: Mapping[str, Any]) -> Any:
    """Evaluate an expression of a loaded file as Ansible does."""
    return Templar(DataLoader(), variables=dict(variables)).template(expression)


def run_tasks(
    folder: Path,
    tasks: list[dict[str, Any]],
    *arguments: str,
    inventory: str = HERE,
    environment: Mapping[str, str] | None = None,
    fails: bool = False,
    **fields: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a play with these tasks, by default on this computer, with Ansible's default callback.

    The play must succeed, or with ``fails`` it must fail.

    ``arguments`` are those of ansible-playbook, ``environment`` has additional variables, and
    ``fields`` are keywords of the play.
    """
    book, hosts = local_play(folder, tasks, inventory=inventory, **fields)
    variables = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
    everything = {**os.environ, **variables, **(environment or {})}
    result = play(everything, book, *arguments, inventory=hosts)
    assert (result.returncode != 0) == fails, result.stdout + result.stderr
    return result


def local_play(
    folder: Path, tasks: list[dict[str, Any]], *, inventory: str = HERE, **fields: Any
) -> tuple[Path, str]:
    """Write a playbook with one play, and its inventory; return the paths of both."""
    book, hosts = folder / "book.yml", folder / "hosts.yml"
    # With a filter in ``hosts``, Ansible loads the collection's filters once, before the tasks.
    # Otherwise the process of each task loads them, which takes a quarter of a second.
    pattern = "{{ '' | tpufleet.core.workers_pattern(groups) }}"
    book.write_text(json.dumps([{"hosts": pattern, "tasks": tasks, **fields}]))
    hosts.write_text(inventory)
    return book, str(hosts)
