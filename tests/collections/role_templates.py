"""Rendered templates of a role, and plays that run a role on this computer."""

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from localcloud.local_cloud import PROJECT_ROOT


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


def local_play(folder: Path, tasks: list[dict[str, Any]], **fields: Any) -> tuple[Path, str]:
    """Write a playbook with one play for this computer; return it and the path of its inventory."""
    book, hosts = folder / "book.yml", folder / "hosts.ini"
    # With a filter in ``hosts``, Ansible loads the collection's filters once, before the tasks.
    # Otherwise the process of each task loads them, which takes a quarter of a second.
    pattern = "{{ '' | tpufleet.core.workers_pattern(groups) }}"
    book.write_text(json.dumps([{"hosts": pattern, "tasks": tasks, **fields}]))
    hosts.write_text("[tpu]\nlocalhost ansible_connection=local\n")
    return book, str(hosts)
