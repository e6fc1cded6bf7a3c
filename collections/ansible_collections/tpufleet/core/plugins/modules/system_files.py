#!/usr/bin/python
"""Have several of the system's files as they should be, and let the system take them, at once."""

from __future__ import annotations

DOCUMENTATION = r"""
module: system_files
short_description: Have several of the system's files, and let the system take them, in one step
description:
  - Files that differ are written, each whole or not at all, in the order of the list. Then what
    changed is taken by the tool that its place belongs to, once for all of them. Files of
    C(sysusers.d) by systemd-sysusers, of C(tmpfiles.d) by systemd-tmpfiles; units by a reload of
    systemd, and those with an C([Install]) section are enabled and started anew; the journal is
    restarted for its own settings.
  - The users, directories and running units that the files ask for are looked at each time, and
    made if they are missing. What an interrupted step still owes is done by the next one.
options:
  files:
    description: The files.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where it is.
        type: path
        required: true
      content:
        description: All that is in it.
        type: str
        required: true
      mode:
        description: Its mode, as octal digits.
        type: str
        default: "0644"
  directories:
    description: Directories that are made, whole ways of them, if they are missing.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where it is.
        type: path
        required: true
      owner:
        description: The number of its user and group.
        type: int
        default: 0
      mode:
        description: Its mode, as octal digits.
        type: str
        default: "0755"
  owed:
    description: Where it is written down which files the system has not taken yet.
    type: path
    default: /etc/tpufleet/owed
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Have a user and a place of its own
  tpufleet.core.system_files:
    files:
      - path: /etc/sysusers.d/trainer.conf
        content: |
          u trainer 64042 "runs the trainer" /var/lib/trainer
      - path: /etc/tmpfiles.d/trainer.conf
        content: |
          d /var/lib/trainer 0755 trainer trainer -
  become: true
"""

RETURN = r"""
taken:
  description: The files that the system had to take.
  returned: success
  type: list
"""

import stat
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.safe_files import is_directory, make_directory
from ..module_utils.worker.system_files import SystemFile, clashes, following, undone


class NotTakenError(Exception):
    """The system did not take a file; the text is one line for a person."""


def read(path: Path) -> str:
    """Read a file that may not be there. Raises OSError."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def differs(file: SystemFile) -> bool:
    """Tell whether the file is not as it should be. Raises OSError."""
    path = Path(file.path)
    if not path.is_file():
        return True
    return stat.S_IMODE(path.stat().st_mode) != file.mode or read(path) != file.content


def write(file: SystemFile) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    path = Path(file.path)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.tpufleet")
    new.write_text(file.content, encoding="utf-8")
    new.chmod(file.mode)
    new.replace(path)


def let_take(files: list) -> None:
    """Let the system take the files. Raises NotTakenError, OSError."""
    for words in following(files):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no word of why"]
            raise NotTakenError(f"{' '.join(words)}: {lines[-1]}")
    for file in files:
        for thing in undone(file):
            raise NotTakenError(f"{thing} of {file.path}: still missing")


def keep_owed(path: Path, owed: set) -> None:
    """Write down which files the system has still to take. Raises OSError."""
    if owed:
        write(SystemFile(str(path), "".join(f"{one}\n" for one in sorted(owed))))
    else:
        path.unlink(missing_ok=True)


def file_diff(file: SystemFile) -> dict:
    """Say how a file will change; its mode stands in the header."""
    path = Path(file.path)
    there = f"{stat.S_IMODE(path.stat().st_mode):04o}" if path.exists() else "not there"
    return {
        "before": read(path),
        "after": file.content,
        "before_header": f"{path} ({there})",
        "after_header": f"{path} ({file.mode:04o})",
    }


def main() -> None:
    """Compare, write, and let the system take what changed."""
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True},
                    "mode": {"type": "str", "default": "0644"},
                },
            },
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "owner": {"type": "int", "default": 0},
                    "mode": {"type": "str", "default": "0755"},
                },
            },
            "owed": {"type": "path", "default": "/etc/tpufleet/owed"},
        },
        supports_check_mode=True,
    )
    files = [
        SystemFile(one["path"], one["content"], int(one["mode"], 8))
        for one in module.params["files"]
    ]
    places = [
        (Path(one["path"]), one["owner"], int(one["mode"], 8))
        for one in module.params["directories"]
    ]
    note = Path(module.params["owed"])
    try:
        for clash in clashes(files):
            module.fail_json(
                msg=f"{clash}: free it on this worker (usermod -u, groupmod -g), then "
                "ansible-playbook setup.yml"
            )
        owed = set(read(note).splitlines())
        new = [file for file in files if differs(file)]
        lacking = {file.path: undone(file) for file in files}
        taken = [file for file in files if file in new or file.path in owed or lacking[file.path]]
        wrong = [place for place in places if not is_directory(*place)]
        things = [thing for file in files for thing in lacking[file.path]]
        things += [f"the directory {path}" for path, _, _ in wrong]
        diff = [file_diff(file) for file in new]
        if things:
            diff.append({"before": "", "after": "".join(f"{thing}\n" for thing in things)})
        if not module.check_mode:
            if following(taken):
                keep_owed(note, owed | {file.path for file in taken})
            for file in new:
                write(file)
            let_take(taken)
            for place in wrong:
                make_directory(*place)
            if owed or following(taken):
                keep_owed(note, owed - {file.path for file in files})
    except NotTakenError as error:
        module.fail_json(msg=f"{error}: mend that on this worker, then ansible-playbook setup.yml")
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(changed=bool(taken or wrong), taken=[file.path for file in taken], diff=diff)


if __name__ == "__main__":
    main()
