#!/usr/bin/python
"""Set a worker's time zone, and see that something keeps its clock right."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_clock
short_description: Set the time zone, and have the clock kept right
description:
  - The zone is one of the system's own. In a container the clock is the host's, and left alone.
options:
  timezone:
    description: The zone, such as Etc/UTC or Asia/Taipei.
    type: str
    required: true
  sync:
    description: Whether the clock is to be kept right over the network.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Have the clock in UTC
  tpufleet.core.host_clock:
    timezone: Etc/UTC
  become: true
"""

RETURN = r"""
synced_by:
  description: What keeps the clock right; empty in a container.
  returned: success
  type: str
"""

import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

ZONES = Path("/usr/share/zoneinfo")
SERVICES = ("chrony", "chronyd", "ntpsec", "ntp", "systemd-timesyncd")


def current_zone() -> str:
    """Read the zone that the system has."""
    local = Path("/etc/localtime")
    told = str(local.readlink()) if local.is_symlink() else ""
    return told.partition("zoneinfo/")[2] or "Etc/UTC"


def succeeds(*words: str) -> bool:
    """Tell whether a command ends well."""
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def active() -> str:
    """Name the service that keeps the clock right; empty if there is none."""
    for name in SERVICES:
        if succeeds("systemctl", "--quiet", "is-active", f"{name}.service"):
            return name
    return ""


def start_one() -> str:
    """Start the first service that is installed; empty if none is."""
    for name in SERVICES:
        if succeeds("systemctl", "--quiet", "enable", "--now", f"{name}.service"):
            return name
    return ""


def main() -> None:
    """Compare and set."""
    module = AnsibleModule(
        argument_spec={
            "timezone": {"type": "str", "required": True},
            "sync": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    zone, check = module.params["timezone"], module.check_mode
    file = ZONES / zone
    known = file.is_file() and ZONES in file.parents and ".." not in zone
    if not known and (ZONES.is_dir() or not check):
        module.fail_json(
            msg=f"there is no time zone {zone}: set base_timezone to one that "
            "`timedatectl list-timezones` names, then ansible-playbook setup.yml --tags base"
        )
    before = current_zone()
    try:
        if before != zone and not check:
            new = Path("/etc/.localtime.tpufleet")
            new.unlink(missing_ok=True)
            new.symlink_to(file)
            new.replace("/etc/localtime")
            Path("/etc/timezone").write_text(f"{zone}\n", encoding="ascii")
        container = succeeds("systemd-detect-virt", "--quiet", "--container")
        wants = module.params["sync"] and not container
        keeper = active() if wants else ""
        starts = wants and not keeper
        if starts and not check:
            keeper = start_one()
            if not keeper:
                module.fail_json(
                    msg="nothing keeps this clock right: add chrony to base_packages, "
                    "then ansible-playbook setup.yml --tags base"
                )
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    diff = {"before": f"{before}\n", "after": f"{zone}\n"}
    module.exit_json(changed=bool(before != zone or starts), synced_by=keeper, diff=diff)


if __name__ == "__main__":
    main()
