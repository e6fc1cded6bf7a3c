#!/usr/bin/python
"""Give a worker uv and a Python that JAX runs on."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_toolchain
short_description: Give a worker uv, and a Python that is new enough
description:
  - Installs uv from a lock file with hashes, into a directory of its own that the lock's content
    names.
  - Takes the system's Python if it is new enough, else lets uv install one. C(ROOT/bin/uv) and
    C(ROOT/bin/python) lead to what was chosen.
  - What is downloaded comes to the TPU's leader, and from there to its other workers.
options:
  turn:
    description: With V(leader), nothing is done on a worker that has a leader to take from; to be
      run first.
    type: str
    choices: [leader, all]
    default: all
  source:
    description: Where wheels come from. V(controller) for workers that have no way out. The
      controller downloads them then, and sends them to the leader.
    type: str
    choices: [registry, controller]
    default: registry
  pack:
    description: A tar file of wheels on the worker; the controller's part puts it there.
    type: path
  cache:
    description: Where the controller keeps what it downloads. Of the controller's part.
    type: path
    default: ~/.cache/tpufleet
  env:
    description: More environment variables for pip and uv, such as an index of one's own.
    type: dict
    default: {}
  lock:
    description: The lock file's text, in pip's format with hashes.
    type: str
    required: true
  root:
    description: Where the fleet lives on the worker.
    type: path
    default: /opt/tpufleet
  minimum:
    description: The oldest minor version of Python 3 that serves.
    type: int
    default: 12
  wanted:
    description: The version that uv installs where the system's is too old.
    type: str
    default: "3.12"
  mirror:
    description: Where uv takes Python from, in place of its own default.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Have uv and a Python
  tpufleet.core.python_toolchain:
    lock: "{{ lookup('ansible.builtin.file', 'requirements/bootstrap.lock') }}"
  become: true
"""

RETURN = r"""
python:
  description: The interpreter that was chosen.
  returned: success
  type: str
needs:
  description: For what the controller is to send wheels.
  returned: where they are missing and O(source=controller)
  type: dict
uv:
  description: The uv that was installed.
  returned: success
  type: str
"""

import os
import shutil
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.from_leader import FromLeaderError, has_leader, pull
from ..module_utils.worker.locks import SETUP, one_at_a_time
from ..module_utils.worker.python_env import (
    EnvError,
    check_room,
    lock_digest,
    network_environment,
    packages,
    python_minor,
    run,
)
from ..module_utils.worker.wheels import (
    NotHereError,
    download,
    drop,
    have_sent,
    take_from_leader,
    unpack_programs,
    wheels_folder,
)

UV_MB = 200


def system_python(minimum: int) -> Path | None:
    """Find a Python of the system's that is new enough, has venv and runs; the plain one first."""
    names = ["python3", *(f"python3.{minor}" for minor in range(minimum + 4, minimum - 1, -1))]
    for name in names:
        found = shutil.which(name, path="/usr/bin:/usr/local/bin")
        try:
            if found and python_minor(Path(found)) >= minimum:
                return Path(found).resolve()
        except EnvError:
            continue
    return None


def install_uv(home: Path, options: dict, cache: Path) -> str:
    """Have uv, from the leader's wheel if there is a leader, else from one that pip downloads.

    Gives what a person should know. Raises EnvError, NotHereError, OSError.
    """
    lock, minor, word = options["lock"], sys.version_info.minor, ""
    check_room(home, UV_MB)
    wheels = wheels_folder(cache, lock, minor)
    if options["source"] == "controller":
        pack = Path(options["pack"]) if options["pack"] else None
        word = have_sent(wheels, lock, pack, has_leader(), minor)
    elif has_leader():
        try:
            take_from_leader(wheels)
        except FromLeaderError as error:
            word = f"{error}: this worker downloaded for itself"
    if home.exists():
        shutil.rmtree(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    if not wheels.is_dir():
        run(
            [sys.executable, "-m", "venv", str(home)],
            network_environment(os.environ),
            "python3 -m venv (is python3-venv installed?)",
        )
        download(wheels, lock, [str(home / "bin/pip")], options["env"])
    unpack_programs(wheels, lock, home / "bin")
    if has_leader():
        drop(cache, lock)
    (home / "complete").touch()
    return word


def take_python(folder: Path, wanted: str) -> Path | None:
    """Take the Python that the leader has, if there is a leader and it has one."""
    if not has_leader():
        return None
    try:
        pull("python", "", folder)
    except FromLeaderError:
        return None
    return installed_python(folder, wanted)


def install_python(uv: Path, folder: Path, wanted: str, mirror: str, env: dict) -> Path:
    """Let uv install a Python and tell where it is."""
    environment = network_environment({**os.environ, **env})
    environment["UV_PYTHON_INSTALL_DIR"] = str(folder)
    if mirror:
        environment["UV_PYTHON_INSTALL_MIRROR"] = mirror
    hint = (
        f"the system's Python is too old and {mirror or 'the usual place'} gives none: set "
        "python_mirror to a place that this worker can reach, then "
        "ansible-playbook setup.yml --tags python"
    )
    try:
        run(
            [str(uv), "python", "install", "--no-bin", wanted],
            environment,
            f"uv python install {wanted}",
        )
    except EnvError as error:
        raise EnvError(f"{error}: {hint}") from error
    found = installed_python(folder, wanted)
    if not found:
        raise EnvError(f"uv installed no Python {wanted} in {folder}: {hint}")
    return found


def installed_python(folder: Path, wanted: str) -> Path | None:
    """Find a Python that uv has installed before."""
    minor = ".".join(wanted.split(".")[:2])
    found = sorted(folder.glob(f"cpython-{wanted}*/bin/python{minor}"))
    return found[-1] if found else None


def link(path: Path, target: Path, check: bool) -> dict | None:
    """Make a link lead to its target; tell what changed."""
    now = str(path.readlink()) if path.is_symlink() else None
    if now == str(target):
        return None
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(path)
    before = f"{path} -> {now}\n" if now else ""
    return {"before": before, "after": f"{path} -> {target}\n"}


def main() -> None:
    """Install what is missing, link what was chosen."""
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "str", "required": True},
            "turn": {"type": "str", "choices": ["leader", "all"], "default": "all"},
            "source": {"type": "str", "choices": ["registry", "controller"], "default": "registry"},
            "pack": {"type": "path"},
            "cache": {"type": "path", "default": "~/.cache/tpufleet"},
            "env": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/opt/tpufleet"},
            "minimum": {"type": "int", "default": 12},
            "wanted": {"type": "str", "default": "3.12"},
            "mirror": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    options, root = module.params, Path(module.params["root"])
    home = root / f"uv-{lock_digest(options['lock'])[:16]}"
    uv = home / "bin/uv"
    if options["turn"] == "leader" and has_leader():
        module.exit_json(changed=False, python="", uv="")
    missing_uv = not (home / "complete").exists()
    try:
        if missing_uv and not module.check_mode:
            with one_at_a_time(SETUP):
                missing_uv = not (home / "complete").exists()
                if missing_uv:
                    word = install_uv(home, options, root / "cache")
                    if word:
                        module.warn(word)
        python = system_python(options["minimum"]) or installed_python(
            root / "python", options["wanted"]
        )
        missing_python = python is None
        if missing_python and not module.check_mode:
            folder, wanted = root / "python", options["wanted"]
            python = take_python(folder, wanted) or install_python(
                uv, folder, wanted, options["mirror"], options["env"]
            )
    except EnvError as error:
        module.fail_json(msg=str(error))
    except NotHereError as error:
        module.exit_json(changed=False, python="", uv="", needs=error.needs)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    python = python or root / "python" / f"cpython-{options['wanted']}"
    diffs = [
        link(root / "bin/uv", uv, module.check_mode),
        link(root / "bin/python", python, module.check_mode),
    ]
    if missing_uv:
        diffs.append(
            {"before": "", "after": "".join(f"{name}\n" for name in packages(options["lock"]))}
        )
    diffs = [diff for diff in diffs if diff]
    module.exit_json(
        changed=bool(diffs or missing_python), diff=diffs, python=str(python), uv=str(uv)
    )


if __name__ == "__main__":
    main()
