#!/usr/bin/python
"""Make one end of the way by which a TPU's workers take directories from its leader."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_ssh
short_description: Let the workers of a TPU take directories from its leader, and do nothing else
description:
  - C(part=key) makes a worker's own key, once. The private half never leaves the worker.
  - C(part=leader) lets the given keys in, each from its worker's address alone, to an rsync server
    that only reads the served directories.
  - C(part=worker) tells a worker where its leader is and by which host keys it is known.
options:
  part:
    description: Which end to make.
    type: str
    choices: [key, leader, worker]
    required: true
  keys:
    description: Public keys of workers by their internal address. Of C(part=leader).
    type: dict
    default: {}
  addresses:
    description: The internal addresses of all workers that may come. A key of one that is not
      in I(keys) stays as it is, one of any other address goes. Of C(part=leader).
    type: list
    elements: str
    default: []
  serves:
    description: The served directories by name. Of C(part=leader).
    type: dict
    default: {}
  leader:
    description: The leader's internal address. Of C(part=worker).
    type: str
    default: ""
  host_keys:
    description: The leader's public host keys. Of C(part=worker).
    type: list
    elements: str
    default: []
  folder:
    description: Where the fleet's own ssh files lie.
    type: path
    default: /etc/tpufleet/peer
  home:
    description: The home directory of the user that the workers come as.
    type: path
    default: /var/lib/tpufleet-peer
  host_key_glob:
    description: The leader's public host key files.
    type: path
    default: /etc/ssh/ssh_host_*_key.pub
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Have a key of this worker's own
  tpufleet.core.fleet_ssh:
    part: key
  register: fleet_key
  become: true
"""

RETURN = r"""
public_key:
  description: The worker's public key; empty in a dry run where there is none yet.
  returned: part is key
  type: str
host_keys:
  description: The leader's public host keys.
  returned: part is leader
  type: list
"""

import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.fleet_ssh import authorized_keys, known_hosts, rsyncd_conf, ssh_config


def public_key(folder: Path, *, make: bool) -> str:
    """Give the worker's public key, which is made if it isn't there. Raises OSError,
    CalledProcessError."""
    private, public = folder / "id_ed25519", folder / "id_ed25519.pub"
    if private.exists() and not public.exists():
        told = ["ssh-keygen", "-y", "-f", str(private)]
        return subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip()
    if not private.exists() and make:
        new = folder / "new_ed25519"
        for half in (new, new.with_suffix(".pub")):
            half.unlink(missing_ok=True)
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(new)]
        subprocess.run(words, check=True, capture_output=True, text=True)
        new.with_suffix(".pub").replace(public)
        new.replace(private)
    return public.read_text(encoding="ascii").strip() if private.exists() else ""


def write(path: Path, text: str, mode: int, *, check: bool) -> dict | None:
    """Have a file say ``text``; tell what changed."""
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if before == text and path.stat().st_mode & 0o777 == mode:
        return None
    if not check:
        new = path.with_name(f".{path.name}.new")
        new.write_text(text, encoding="utf-8")
        new.chmod(mode)
        new.replace(path)
    header = {"before_header": str(path), "after_header": str(path)}
    return {"before": before or "", "after": text, **header}


def main() -> None:
    """Make what is missing."""
    module = AnsibleModule(
        argument_spec={
            "part": {"type": "str", "choices": ["key", "leader", "worker"], "required": True},
            "keys": {"type": "dict", "default": {}, "no_log": False},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "serves": {"type": "dict", "default": {}},
            "leader": {"type": "str", "default": ""},
            "host_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "folder": {"type": "path", "default": "/etc/tpufleet/peer"},
            "home": {"type": "path", "default": "/var/lib/tpufleet-peer"},
            "host_key_glob": {
                "type": "path",
                "default": "/etc/ssh/ssh_host_*_key.pub",
                "no_log": False,
            },
        },
        supports_check_mode=True,
    )
    options, check = module.params, module.check_mode
    folder, home = Path(options["folder"]), Path(options["home"])
    result, diffs = {}, []
    try:
        if not check:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if options["part"] == "key":
            had = (folder / "id_ed25519").exists()
            result = {"public_key": public_key(folder, make=not check)}
            if not had:
                diffs.append({"before": "", "after": f"{folder}/id_ed25519\n"})
        elif options["part"] == "leader":
            keys, conf = home / ".ssh/authorized_keys", folder / "rsyncd.conf"
            if not check:
                keys.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            before = keys.read_text(encoding="ascii") if keys.exists() else ""
            text = authorized_keys(before, options["keys"], options["addresses"], conf)
            diffs.append(write(conf, rsyncd_conf(options["serves"]), 0o644, check=check))
            diffs.append(write(keys, text, 0o644, check=check))
            glob = Path(options["host_key_glob"])
            found = sorted(glob.parent.glob(glob.name))
            result = {"host_keys": [key.read_text(encoding="ascii").strip() for key in found]}
        elif options["host_keys"]:
            config = ssh_config(options["leader"], folder)
            trusted = known_hosts(options["host_keys"])
            diffs.append(write(folder / "known_hosts", trusted, 0o644, check=check))
            diffs.append(write(folder / "ssh_config", config, 0o644, check=check))
        else:
            module.fail_json(msg="the leader told no host keys: is sshd installed there?")
    except subprocess.CalledProcessError as error:
        module.fail_json(msg=f"ssh-keygen: {(error.stderr or '').strip() or error.returncode}")
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    diffs = [diff for diff in diffs if diff]
    module.exit_json(changed=bool(diffs), diff=diffs, **result)


if __name__ == "__main__":
    main()
