"""Paths of files that users name in the inventory or on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def user_path(given: str, project: str) -> str:
    """Return the absolute path of a file that a user has named; empty if ``given`` is empty.

    ``~`` and ``$VARIABLE`` are replaced. A relative path starts at the current directory, or if the
    file is not there, at the directory ``project``.
    """
    if not given:
        return ""
    path = Path(os.path.expandvars(given)).expanduser()
    places = [folder / path for folder in (Path.cwd(), Path(project))]
    found = next((place for place in places if place.exists()), places[0])
    return os.path.realpath(found)


def find_links(env: Mapping[str, str], here: str, worker: str = "") -> dict[str, str]:
    """Return ``env`` with a directory of wheels added to UV_FIND_LINKS and PIP_FIND_LINKS.

    Args:
        env: the environment variables for uv and pip.
        here: the wheels' directory on the controller, where pip runs; empty to add nothing.
        worker: the wheels' directory on the worker if uv runs there; empty if uv runs here.
    """
    if not here:
        return dict(env)
    uv = env.get("UV_FIND_LINKS", "" if worker else os.environ.get("UV_FIND_LINKS", ""))
    pip = env.get("PIP_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
    return {
        **env,
        "UV_FIND_LINKS": ",".join(filter(None, (uv, worker or here))),
        "PIP_FIND_LINKS": " ".join(filter(None, (pip, here))),
    }
