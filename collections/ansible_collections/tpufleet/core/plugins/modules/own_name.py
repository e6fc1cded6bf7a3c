#!/usr/bin/python
"""Let a worker's own host name lead to its own address."""

from __future__ import annotations

DOCUMENTATION = r"""
module: own_name
short_description: Let a worker's own host name lead to its address in the fleet
description:
  - JAX's CPU collectives (gloo) and NCCL announce the address that the worker's own name resolves
    to. Debian's C(127.0.1.1) would send every peer to itself.
options:
  address:
    description: The worker's address in the fleet.
    type: str
    required: true
  path:
    description: The hosts file.
    type: path
    default: /etc/hosts
  name:
    description: The host name. By default the worker's own.
    type: str
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Let the worker's name lead to its address
  tpufleet.core.own_name:
    address: "{{ tpu_internal_ip }}"
  become: true
"""

RETURN = r"""
name:
  description: The host name.
  returned: always
  type: str
"""

import socket
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.hosts_file import with_own_name


def main() -> None:
    """Compare the hosts file with what it should say, and write it if it differs."""
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "required": True},
            "path": {"type": "path", "default": "/etc/hosts"},
            "name": {"type": "str"},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    name = module.params["name"] or socket.gethostname()
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = with_own_name(before, name, module.params["address"])
    if after != before and not module.check_mode:
        new = path.with_name(f".{path.name}.tpufleet")
        new.write_text(after, encoding="utf-8")
        new.chmod(0o644)
        module.atomic_move(str(new), str(path))
    diff = {"before": before, "after": after, "before_header": str(path), "after_header": str(path)}
    module.exit_json(changed=after != before, name=name, diff=diff)


if __name__ == "__main__":
    main()
