#!/usr/bin/python
"""Check, or write, the certificate that says that a worker is ready."""

from __future__ import annotations

DOCUMENTATION = r"""
module: certificate
short_description: Check or write the certificate that says that a worker is ready
description:
  - The certificate names what setup would do by a hash of its content, which the controller makes
    of the play's roles, of the modules they use, and of their variables for this worker.
  - With O(state=checked), a certificate that doesn't hold any more is taken away, so that nothing
    is launched on a worker that setup is changing.
  - With O(state=granted), it is written, if nothing is missing.
options:
  state:
    description: What to do.
    type: str
    choices: [checked, granted]
    required: true
  roles:
    description: The roles whose content counts. Of the controller's part.
    type: list
    elements: str
    default: []
  uncounted:
    description: Variables of these roles whose values don't count. Of the controller's part.
    type: list
    elements: str
    default: []
  content:
    description: The hash of what setup would do; the controller's part makes it.
    type: str
    default: ""
  void:
    description: Take the certificate away, whatever it says. Of O(state=checked).
    type: bool
    default: false
  files:
    description: Patterns of the files that setup writes.
    type: list
    elements: str
    default: []
  packages:
    description: Debian packages that must be installed.
    type: list
    elements: str
    default: []
  units:
    description: Units of systemd that must be active.
    type: list
    elements: str
    default: []
  lock:
    description: The text of the lock file whose environment must be there, proven.
    type: str
    default: ""
  device_glob:
    description: The accelerators' device files.
    type: str
    default: ""
  chips:
    description: How many of them there must be.
    type: int
    default: 0
  root:
    description: Where the fleet lives on the worker.
    type: path
    default: /opt/tpufleet
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: See whether the worker is ready as it is
  tpufleet.core.certificate:
    state: checked
    roles: [base, jax]
  become: true
"""

RETURN = r"""
ready:
  description: Whether the worker has a certificate that holds.
  returned: always
  type: bool
lacks:
  description: What the certificate lacks, a phrase each.
  returned: always
  type: list
"""

import json
import os
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.apt_words import QUERY, missing
from ..module_utils.worker.certificate import NAME, digests, lacks, read_certificate
from ..module_utils.worker.devices import device_files
from ..module_utils.worker.python_env import (
    EnvError,
    env_id,
    is_complete,
    lock_digest,
    python_minor,
)


def missing_packages(packages: list) -> list:
    """Ask dpkg which packages are not installed. Raises OSError."""
    if not packages:
        return []
    names = [name.partition("=")[0] for name in packages]
    words = ["dpkg-query", "--show", f"--showformat={QUERY}", *names]
    told = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return [f"the package {name} is not installed" for name in missing(packages, told)]


def inactive_units(units: list) -> list:
    """Ask systemd which units are not active. Raises OSError."""
    if not units:
        return []
    words = ["systemctl", "is-active", *units]
    told = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    states = dict(enumerate(told))
    said = [(unit, states.get(number, "unknown")) for number, unit in enumerate(units)]
    return [f"{unit} is {state}" for unit, state in said if state != "active"]


def environment(root: Path, lock: str) -> tuple:
    """Name the environment that is there and proven, and its proof; empty if there is none."""
    try:
        env = root / "envs" / env_id(lock_digest(lock), python_minor(root / "bin/python"))
        proof = json.loads(env.with_name(f"{env.name}.proof.json").read_text(encoding="utf-8"))
    except (EnvError, OSError, ValueError):
        return "", {}
    return (env.name, proof) if is_complete(env) else ("", {})


def look(options: dict) -> dict:
    """See how the worker stands. Raises OSError."""
    root = Path(options["root"])
    name, proof = environment(root, options["lock"]) if options["lock"] else ("", {})
    missing = missing_packages(options["packages"]) + inactive_units(options["units"])
    if options["lock"] and not name:
        missing.append("JAX is not proven in the environment that the lock file names")
    chips = len(device_files(options["device_glob"]))
    if chips < options["chips"]:
        missing.append(f"{chips} chips are seen where {options['chips']} should be")
    return {
        "content": options["content"],
        "environment": name,
        "versions": {"jax": proof.get("jax", ""), "kernel": os.uname().release},
        "chips": chips,
        "files": digests(options["files"]),
        "missing": missing,
    }


def grant(path: Path, now: dict) -> None:
    """Write the certificate, whole or not at all. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as stream:
        json.dump({key: now[key] for key in now if key != "missing"}, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    new.chmod(0o644)
    new.replace(path)


def main() -> None:
    """Compare, then take away or write."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["checked", "granted"], "required": True},
            "roles": {"type": "list", "elements": "str", "default": []},
            "uncounted": {"type": "list", "elements": "str", "default": []},
            "content": {"type": "str", "default": ""},
            "void": {"type": "bool", "default": False},
            "files": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "lock": {"type": "str", "default": ""},
            "device_glob": {"type": "str", "default": ""},
            "chips": {"type": "int", "default": 0},
            "root": {"type": "path", "default": "/opt/tpufleet"},
        },
        supports_check_mode=True,
    )
    options, path = module.params, Path(module.params["root"]) / NAME
    try:
        before, now = read_certificate(path.parent), look(options)
        found = lacks(before, now) if before else ["it has no certificate"]
        if options["state"] == "checked":
            if options["void"]:
                found.append("its renewal was asked for")
            if found and path.exists() and not module.check_mode:
                path.unlink()
            diff = {"before": f"{path}\n", "after": ""} if found and before else {}
            module.exit_json(changed=bool(diff), ready=not found, lacks=found, diff=diff)
        if now["missing"] and not module.check_mode:
            hint = "reboot it or make its TPU anew, then ansible-playbook setup.yml"
            module.fail_json(msg=f"not ready: {'; '.join(now['missing'])}: {hint}")
        if found and not module.check_mode:
            grant(path, now)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    diff = {"before": "", "after": f"{path}\n"} if found else {}
    module.exit_json(changed=bool(found), ready=True, lacks=[], diff=diff)


if __name__ == "__main__":
    main()
