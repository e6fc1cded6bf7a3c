"""Render a template of a role with given variables, as the role does on a worker."""

from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from localcloud.place import PROJECT_ROOT


def rendered(template: str, **variables: Any) -> str:
    """Return the text of ``ROLE/FILE`` below ``roles/ROLE/templates``."""
    role, _, name = template.partition("/")
    environment = Environment(  # noqa: S701 - configuration files, not HTML
        loader=FileSystemLoader(PROJECT_ROOT / "roles" / role / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(ansible_managed="Ansible managed", **variables)
