#!/usr/bin/python
"""Module tpufleet.core.python_toolchain: install uv and a Python interpreter on a worker."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_toolchain
short_description: Install uv, and a Python that is new enough
description:
  - Installs uv from a lock file with hashes. The directory of uv is named after a digest of the
    lock file.
  - Uses the system's Python if it is new enough; otherwise uv installs one. The links
    C(/opt/tpufleet/bin/uv) and C(/opt/tpufleet/bin/python) point to uv and to this Python.
  - The TPU's leader downloads uv and Python, and the other workers copy them from the leader. A
    worker whose copy fails gets them as the leader does.
extends_documentation_fragment:
  - tpufleet.core.wheels
  - tpufleet.core.diff_mode
options:
  minimum:
    description: The oldest minor version of Python 3 that is accepted.
    type: int
    default: 12
  wanted:
    description: The Python version that uv installs if the system's Python is too old.
    type: str
    default: "3.12"
  mirror:
    description: The URL from which uv downloads Python instead of uv's default.
    type: str
    default: ""
author: tpufleet
"""

EXAMPLES = r"""
- name: Install uv and Python
  tpufleet.core.python_toolchain:
    lock: "{{ lookup('ansible.builtin.file', 'requirements/bootstrap.lock') }}"
  become: true
"""

RETURN = r"""
python:
  description: The path of the interpreter.
  returned: success
  type: str
needs:
  description: Internal. The minor version of Python, the machine type and the glibc version for
    which the controller must send wheels. The action plugin sends them and calls the module again.
  returned: wheels are missing and O(source=controller)
  type: dict
uv:
  description: The path of uv.
  returned: success
  type: str
"""

import os
import shutil
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.contract import ROOT
from ..module_utils.worker.env_install import without_secrets
from ..module_utils.worker.from_leader import FromLeaderError, has_leader, pull
from ..module_utils.worker.locks import SETUP, one_at_a_time
from ..module_utils.worker.os_errors import os_error_text, output_says_disk_is_full
from ..module_utils.worker.python_env import (
    EnvError,
    check_free_space,
    lock_digest,
    network_environment,
    packages,
    python_minor,
    run,
)
from ..module_utils.worker.wheels import (
    OPTIONS,
    WheelsMissingError,
    copy_from_leader,
    download,
    provide_wheels,
    remove_wheels,
    unpack_programs,
    wheels_folder,
)

UV_MB = 200


def system_python(minimum: int) -> Path | None:
    """Return the path of a system Python 3 whose minor version is at least ``minimum``, or None.

    The command python3 is preferred to commands such as python3.12.
    """
    names = ["python3", *(f"python3.{minor}" for minor in range(minimum + 4, minimum - 1, -1))]
    for name in names:
        path = shutil.which(name, path="/usr/bin:/usr/local/bin")
        try:
            if path and python_minor(Path(path)) >= minimum:
                return Path(path).resolve()
        except EnvError:
            continue
    return None


def install_uv(home: Path, options: dict, cache: Path) -> str:
    """Install uv to ``home`` from a wheel, which is copied from the leader or downloaded.

    ``options`` are the module's options, and ``cache`` is the directory of wheels. Returns a
    warning if copying from the leader failed, otherwise an empty string. Raises EnvError,
    WheelsMissingError, OSError.
    """
    lock, minor, warning = options["lock"], sys.version_info.minor, ""
    check_free_space(home, UV_MB)
    wheels = wheels_folder(cache, lock, minor)
    if options["source"] == "controller":
        pack = Path(options["pack"]) if options["pack"] else None
        warning = provide_wheels(wheels, lock, pack, has_leader(), minor)
    elif has_leader():
        try:
            copy_from_leader(wheels)
        except FromLeaderError as error:
            warning = f"{error}. This worker downloaded uv itself"
    if home.exists():
        shutil.rmtree(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    if not wheels.is_dir():
        run(
            [sys.executable, "-m", "venv", str(home)],
            network_environment(os.environ),
            "python3 -m venv, which needs the package python3-venv",
        )
        download(wheels, lock, [str(home / "bin/pip")], options["env"])
    unpack_programs(wheels, lock, home / "bin")
    if has_leader():
        remove_wheels(cache, lock)
    (home / "complete").touch()
    return warning


def copy_python(folder: Path, version: str) -> Path | None:
    """Copy to ``folder`` all Pythons that uv has installed on the leader.

    Returns the path of the interpreter of this ``version``; None if the leader does not have it.
    """
    if not has_leader():
        return None
    try:
        pull("python", "", folder)
    except FromLeaderError:
        remove_broken(folder, version)
        return None
    return installed_python(folder, version)


def install_python(uv: Path, folder: Path, version: str, mirror: str, env: dict) -> Path:
    """Install a Python of this ``version`` with uv and return its path. Raises EnvError.

    ``mirror`` is the URL to download it from, empty for uv's default.
    """
    environment = network_environment({**os.environ, **env})
    environment["UV_PYTHON_INSTALL_DIR"] = str(folder)
    if mirror:
        environment["UV_PYTHON_INSTALL_MIRROR"] = mirror
    source = without_secrets(mirror, environment) or "the default URL"
    hint = (
        "The system's Python is too old, and no newer one could be downloaded from "
        f"{source}. Set python_mirror to a URL that this worker can reach, "
        "then run: ansible-playbook setup.yml --tags python"
    )
    try:
        run(
            [str(uv), "python", "install", "--no-bin", version],
            environment,
            f"uv python install {version}",
        )
    except EnvError as error:
        message = without_secrets(str(error), environment)
        if not output_says_disk_is_full(error.output):
            message = f"{message}. {hint}"
        raise EnvError(message) from None
    python = installed_python(folder, version)
    if not python:
        raise EnvError(
            f"uv reported success, but did not install Python {version} in {folder}. {hint}"
        )
    return python


def installed_python(folder: Path, version: str) -> Path | None:
    """Return the path of the newest Python of this ``version`` that uv has installed.

    ``folder`` is uv's directory of Pythons. Returns None if it has no such Python.
    """
    minor = ".".join(version.split(".")[:2])
    interpreters = sorted(folder.glob(f"cpython-{version}*/bin/python{minor}"))
    return interpreters[-1] if interpreters else None


def working_python(folder: Path, version: str) -> Path | None:
    """Return the result of ``installed_python``; None if that Python does not run.

    An interrupted copy can leave a Python that does not run.
    """
    python = installed_python(folder, version)
    try:
        return python if python and python_minor(python) else None
    except EnvError:
        return None


def remove_broken(folder: Path, version: str) -> None:
    """Remove Pythons of this version that do not run, because uv would not replace them."""
    minor = ".".join(version.split(".")[:2])
    for home in folder.glob(f"cpython-{version}[.-]*"):
        if home.is_dir() and not home.is_symlink():
            try:
                python_minor(home / f"bin/python{minor}")
            except EnvError:
                shutil.rmtree(home)


def link(path: Path, target: Path, check: bool) -> dict | None:
    """Make ``path`` a symbolic link to ``target``. With ``check``, nothing is changed.

    Returns the diff; None if there is no difference.
    """
    current = str(path.readlink()) if path.is_symlink() else None
    if current == str(target):
        return None
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(path)
    before = f"{path} -> {current}\n" if current else ""
    return {"before": before, "after": f"{path} -> {target}\n"}


def main() -> None:
    """Run the module: install uv and Python if missing, and create links to them."""
    module = AnsibleModule(
        argument_spec={
            **OPTIONS,
            "minimum": {"type": "int", "default": 12},
            "wanted": {"type": "str", "default": "3.12"},
            "mirror": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    options, root = module.params, Path(ROOT)
    home = root / f"uv-{lock_digest(options['lock'])[:16]}"
    uv = home / "bin/uv"
    if options["leader_only"] and has_leader():
        module.exit_json(changed=False, python="", uv="")
    missing_uv = not (home / "complete").exists()
    try:
        if missing_uv and not module.check_mode:
            with one_at_a_time(SETUP):
                missing_uv = not (home / "complete").exists()
                if missing_uv:
                    warning = install_uv(home, options, root / "cache")
                    if warning:
                        module.warn(warning)
        python = system_python(options["minimum"]) or working_python(
            root / "python", options["wanted"]
        )
        missing_python = python is None
        if missing_python and not module.check_mode:
            folder, version = root / "python", options["wanted"]
            remove_broken(folder, version)
            python = copy_python(folder, version) or install_python(
                uv, folder, version, options["mirror"], options["env"]
            )
    except EnvError as error:
        module.fail_json(msg=str(error))
    except WheelsMissingError as error:
        module.exit_json(changed=False, python="", uv="", needs=error.needs)
    except OSError as error:
        module.fail_json(msg=os_error_text(error))
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
