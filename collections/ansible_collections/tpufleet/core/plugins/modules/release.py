#!/usr/bin/python
"""Module tpufleet.core.release: install a release of the code on a worker."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release
short_description: Install a state of the code on a worker, as an immutable release named by its
  content
description:
  - On the controller, copies the code once per call of C(ansible-playbook), so that all workers get
    the same state. In a git repository, a release has the tracked files and the untracked files
    that git does not ignore. Elsewhere it has all files except those in C(.git) and
    C(__pycache__).
  - Sends the changed files by rsync over Ansible's ssh connection, into a directory of the login
    user. The leader of a TPU gets them from the controller. The other workers copy the release from
    their leader, or get it from the controller if this fails.
  - On the worker, hard-links files that the release at O(link) also has, and copies the others.
    Then verifies every file against the manifest, renames the directory to the release's name, and
    makes O(link) point to it.
  - After it has installed a release, removes older ones. The five newest stay, and those that a
    link points to or an active run uses.
options:
  code:
    description: The code directory on the controller. A relative path starts at the directory in
      which C(ansible-playbook) was called.
    type: path
    required: true
  code_paths:
    description: The only files and directories of O(code) to include. Empty for all.
    type: list
    elements: str
    default: []
  link:
    description:
      - The link below C(/opt/tpufleet) to the release.
      - V(current) is for code that users push.
      - V(programs) is for tpufleet's own programs, which the units of runs start. Every file of
        their directory is included, even if git ignores it, and a link to a file elsewhere is
        copied as that file.
    type: str
    choices: [current, programs]
    default: current
  release:
    description: The release's name. Internal, the action plugin sets it.
    type: str
  from_leader:
    description: Whether to copy the release from the TPU's leader. Internal, the action plugin sets
      it.
    type: bool
    default: false
  incoming:
    description: The directory to which rsync has written. Internal, the action plugin sets it.
    type: path
extends_documentation_fragment: tpufleet.core.diff_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Push the trainer
  tpufleet.core.release:
    code: "{{ playbook_dir }}/.."
    code_paths: [train]
  become: true
  register: pushed
"""

RETURN = r"""
release:
  description: The release's name, the first 16 hexadecimal digits of a SHA-256 over its manifest.
  returned: always
  type: str
path:
  description: The path of the release on the worker.
  returned: always
  type: str
files:
  description: The number of files in the release.
  returned: success, except in check mode if the worker does not have the release
  type: int
"""

import os
import pwd
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.from_leader import FromLeaderError, pull
from ..module_utils.worker.locks import one_at_a_time
from ..module_utils.worker.os_errors import os_error_text
from ..module_utils.worker.release import (
    ReleaseError,
    copy_pushed,
    files_of,
    install,
    link_to,
    linked_release,
    listing,
    prune,
    read_manifest,
    release_problems,
    summary,
    sweep,
)
from ..module_utils.worker.run import RunError, WorkerPaths
from ..module_utils.worker.run_unit import launched_here
from ..module_utils.worker.units import active_runs

RETAINED_RELEASES = 5
"""A worker keeps this many of the newest releases, and all that are in use or have a link."""


def incoming_path(incoming: str) -> Path:
    """Return the directory that rsync wrote to, from the option ``incoming``.

    A relative path starts at the home directory of the login user. The module runs as root through
    sudo, which sets SUDO_USER to the login user's name.
    """
    login = os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    return Path(pwd.getpwnam(login).pw_dir) / incoming


def copy_leader_release(name: str, target: Path, last: Path | None) -> None:
    """Copy the leader's release into ``target``; transfer only files that differ from ``last``.

    rsync hard-links a file of the release ``last`` that has the size, time, mode and owner of the
    leader's file, and creates a new file otherwise. It does not compare contents, so a damaged file
    may be linked. The later verification of the release detects such a file.
    """
    # By default rsync compares times in whole seconds, so it would miss a change that keeps a
    # file's size within the same second. --modify-window=-1 makes it compare nanoseconds.
    options = ["--modify-window=-1", *([f"--link-dest={last}"] if last else [])]
    pull("releases", name, target, options=options, seconds=600)


def used_releases(paths: WorkerPaths) -> set[str]:
    """Return the names of the releases that links point to or active runs use. Raises RunError."""
    releases = paths.release("")
    linked_releases = (linked_release(link, releases) for link in (paths.current, paths.programs))
    launched_releases = (launched_here(run, WorkerPaths()).get("release") for run in active_runs())
    return {release.name for release in linked_releases if release} | {
        str(name) for name in launched_releases
    }


def install_release(
    paths: WorkerPaths, name: str, source: Callable[[Path, Path | None], None], last: Path | None
) -> None:
    """Install a release and remove old releases, under a lock.

    ``source`` fills the directory of the release, and may hard-link files of the release ``last``.
    It is the parameter ``fill`` of ``install`` (worker/release.py). The lock ensures that no other
    installation is in progress when the remains of interrupted ones are removed.
    """
    path, releases = paths.release(name), paths.release(name).parent
    releases.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(releases.with_name("locks") / "releases"):
        sweep(releases)
        # Another controller may have installed the release in the meantime.
        if not path.exists() or release_problems(path, name):
            install(releases, name, source, last)
        prune(releases, RETAINED_RELEASES, {name, *used_releases(paths)})


def main() -> None:
    """Run the module on the worker: install the release if it is missing or damaged."""
    module = AnsibleModule(
        argument_spec={
            "code": {"type": "path", "required": True},
            "code_paths": {"type": "list", "elements": "str", "default": []},
            "link": {"type": "str", "choices": ["current", "programs"], "default": "current"},
            "release": {"type": "str"},
            "incoming": {"type": "path"},
            "from_leader": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    name = module.params["release"]
    if not name or not module.params["incoming"]:
        module.fail_json(
            msg="release: the options release and incoming are missing. Call the module as "
            "tpufleet.core.release, so that its action plugin sets them"
        )
    paths = WorkerPaths()
    path, link = paths.release(name), paths.root / module.params["link"]
    last = linked_release(link, path.parent)
    result = {"release": name, "path": str(path), "changed": False}
    try:
        problems = release_problems(path, name) if path.exists() else ["it is not on this worker"]
        is_linked = last is not None and last.name == name
        result["changed"] = bool(problems) or not is_linked
        if problems and module._diff:
            result["before"] = listing(files_of(last))
        if problems and not module.check_mode:
            source = partial(copy_leader_release, name)
            if not module.params["from_leader"]:
                source = partial(copy_pushed, incoming_path(module.params["incoming"]))
            install_release(paths, name, source, last)
        if problems and module.check_mode:
            result["msg"] = f"release {name} would be installed: {summary(problems)}"
        else:
            result["files"] = len(read_manifest(path))
        if not module.check_mode:
            os.utime(path)
            if not is_linked:
                link_to(path, link)
    except (ReleaseError, FromLeaderError) as error:
        module.fail_json(msg=str(error), mismatch=True, **result)
    except RunError as error:
        module.fail_json(msg=str(error), **result)
    except OSError as error:
        module.fail_json(
            msg=f"release {name} can't be installed: {os_error_text(error)}. Fix this on the "
            "worker, then run the playbook again",
            **result,
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
