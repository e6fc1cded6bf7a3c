#!/usr/bin/python
"""Have the people of a list, and no other of the fleet's, as users of a worker."""

from __future__ import annotations

DOCUMENTATION = r"""
module: people
short_description: Have the people of a list as users of a worker, each with the keys listed
description:
  - Who is not in the list any more loses keys, account and sessions; the home directory stays.
  - Users that the fleet has not made are never touched; they are known by the group.
options:
  people:
    description: Each with O(people.name), O(people.keys) and whether they may use sudo.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The user's name.
        type: str
        required: true
      keys:
        description: Public keys; these and no others open the account.
        type: list
        elements: str
        required: true
      sudo:
        description: Whether everything is allowed by sudo, without a password.
        type: bool
        default: false
      shell:
        description: The login shell.
        type: path
        default: /bin/bash
  group:
    description: The group of all people of the fleet.
    type: str
    default: tpufleet-people
  device_groups:
    description: More groups for everyone, where they exist.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Have Ada
  tpufleet.core.people:
    people:
      - name: ada
        keys: [ssh-ed25519 AAAA ada@home]
  become: true
"""

RETURN = r"""
left:
  description: Who went.
  returned: success
  type: list
"""

import grp
import os
import pwd
import re
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

SUDOERS = Path("/etc/sudoers.d/tpufleet-people")
NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")
KEY = re.compile(r"(ssh-|ecdsa-|sk-)\S+ [A-Za-z0-9+/]+=*( .*)?")


class PeopleError(Exception):
    """The list can't be had; the text is one line for a person."""


def check(people: list) -> None:
    """Refuse what is no name or no key. Raises PeopleError."""
    for person in people:
        if not NAME.fullmatch(person["name"]) or person["name"] in ("root", "tpufleet"):
            raise PeopleError(f"{person['name']!r} is no name for a person: mend users_people")
        for key in person["keys"]:
            if not KEY.fullmatch(key.strip()):
                raise PeopleError(
                    f"{person['name']}: {key[:30]!r} is no public key: mend users_people"
                )


def members(group: str) -> list:
    """Name who is in a group."""
    try:
        return sorted(grp.getgrnam(group).gr_mem)
    except KeyError:
        return []


def account(name: str):
    """Give an account, or None."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def call(*words: str) -> None:
    """Run a tool. Raises PeopleError."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no word of why"]
        raise PeopleError(f"{' '.join(words[:1])} {words[-1]}: {lines[-1]}")


def keys_text(person: dict) -> str:
    """Write the authorized keys of a person."""
    return "".join(f"{key.strip()}\n" for key in person["keys"])


def keys_now(name: str) -> str:
    """Read the authorized keys of a user; empty if there are none."""
    there = account(name)
    file = Path(there.pw_dir) / ".ssh/authorized_keys" if there else None
    return file.read_text(encoding="utf-8") if file and file.is_file() else ""


def write_keys(person: dict) -> None:
    """Have these keys and no others open the account. Raises OSError."""
    there = account(person["name"])
    folder = Path(there.pw_dir) / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chown(folder, there.pw_uid, there.pw_gid, follow_symlinks=False)
    new = folder / ".authorized_keys.tpufleet"
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
        stream.write(keys_text(person))
    os.chown(new, there.pw_uid, there.pw_gid)
    new.replace(folder / "authorized_keys")


def arrive(person: dict, group: str, more: list) -> None:
    """Make or mend an account. Raises PeopleError, OSError."""
    groups = ",".join([group, *[name for name in more if group_exists(name)]])
    if account(person["name"]) is None:
        words = ["useradd", "--create-home", "--shell", person["shell"], "--password", "*"]
        call(*words, "--groups", groups, person["name"])
    else:
        call("usermod", "--shell", person["shell"], "--append", "--groups", groups, person["name"])
    write_keys(person)


def group_exists(name: str) -> bool:
    """Tell whether there is such a group."""
    try:
        return bool(grp.getgrnam(name))
    except KeyError:
        return False


def leave(name: str) -> None:
    """Take keys, sessions and the account. Raises PeopleError, OSError."""
    there = account(name)
    if there:
        (Path(there.pw_dir) / ".ssh/authorized_keys").unlink(missing_ok=True)
        subprocess.run(["loginctl", "terminate-user", name], capture_output=True, check=False)
        call("userdel", "--force", name)


def sudoers(people: list) -> str:
    """Write sudoers(5) for those who may."""
    names = sorted(person["name"] for person in people if person["sudo"])
    return "".join(f"{name} ALL=(ALL:ALL) NOPASSWD:ALL\n" for name in names)


def is_right(person: dict, group: str, more: list) -> bool:
    """Tell whether an account is as it should be."""
    there = account(person["name"])
    wanted = [group, *[name for name in more if group_exists(name)]]
    return bool(
        there
        and there.pw_shell == person["shell"]
        and all(person["name"] in members(name) for name in wanted)
        and keys_now(person["name"]) == keys_text(person)
    )


def main() -> None:
    """Compare, then let people come and go."""
    module = AnsibleModule(
        argument_spec={
            "people": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "keys": {"type": "list", "elements": "str", "required": True, "no_log": False},
                    "sudo": {"type": "bool", "default": False},
                    "shell": {"type": "path", "default": "/bin/bash"},
                },
            },
            "group": {"type": "str", "default": "tpufleet-people"},
            "device_groups": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    people, group, more = (module.params[key] for key in ("people", "group", "device_groups"))
    try:
        check(people)
        known = members(group)
        names = [person["name"] for person in people]
        strangers = [name for name in names if account(name) and name not in known]
        if strangers:
            raise PeopleError(
                f"the user {strangers[0]} is there, but not made by the fleet: "
                "take another name in users_people"
            )
        before = "".join(f"{name}\n{keys_now(name)}" for name in known)
        after = "".join(
            f"{one['name']}\n{keys_text(one)}" for one in sorted(people, key=lambda p: p["name"])
        )
        coming = [one for one in people if not is_right(one, group, more)]
        left = [name for name in known if name not in names]
        allowed = SUDOERS.read_text(encoding="ascii") if SUDOERS.exists() else ""
        changed = bool(coming or left or allowed != sudoers(people))
        if changed and not module.check_mode:
            if not group_exists(group):
                call("groupadd", "--system", group)
            new = SUDOERS.with_name(".tpufleet-people.new")
            new.write_text(sudoers(people), encoding="ascii")
            new.chmod(0o440)
            for name in left:
                leave(name)
            for one in coming:
                arrive(one, group, more)
            new.replace(SUDOERS)
    except PeopleError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(changed=changed, left=left, diff={"before": before, "after": after})


if __name__ == "__main__":
    main()
