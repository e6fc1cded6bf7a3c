"""Paths of files that users name in the inventory or on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def user_path(name: str, project: str) -> str:
    """Return the absolute path of a file that a user has named; empty if ``name`` is empty.

    ``~`` and ``$VARIABLE`` are replaced. A relative path starts at the current directory, or if the
    file is not there, at the directory ``project``.
    """
    if not name:
        return ""
    path = Path(os.path.expandvars(name)).expanduser()
    candidates = [folder / path for folder in (Path.cwd(), Path(project))]
    chosen = next((candidate for candidate in candidates if candidate.exists()), candidates[0])
    return os.path.realpath(chosen)


def find_links(
    env: Mapping[str, str], controller_wheels: str, worker_wheels: str = ""
) -> dict[str, str]:
    """Return ``env`` with a directory of wheels added to UV_FIND_LINKS and PIP_FIND_LINKS.

    Args:
        env: the environment variables for uv and pip.
        controller_wheels: the directory on the controller, where pip runs; empty to add nothing.
        worker_wheels: the directory on the worker if uv runs there; empty if uv runs on the
            controller.
    """
    if not controller_wheels:
        return dict(env)
    uv = env.get("UV_FIND_LINKS", "" if worker_wheels else os.environ.get("UV_FIND_LINKS", ""))
    pip = env.get("PIP_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
    return {
        **env,
        "UV_FIND_LINKS": ",".join(filter(None, (uv, worker_wheels or controller_wheels))),
        "PIP_FIND_LINKS": " ".join(filter(None, (pip, controller_wheels))),
    }
