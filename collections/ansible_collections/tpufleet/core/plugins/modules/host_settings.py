#!/usr/bin/python
"""Set a worker's clock, and let its own host name lead to its own address."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_settings
short_description: Have a worker's clock right, and its own name lead to its own address
description:
  - The zone is one of the system's own. In a container the clock is the host's, and left alone.
  - JAX's CPU collectives (gloo) and NCCL announce the address that the worker's own name resolves
    to. Debian's C(127.0.1.1) would send every peer to itself.
options:
  timezone:
    description: The zone, such as Etc/UTC or Asia/Taipei.
    type: str
    required: true
  sync:
    description: Whether the clock is to be kept right over the network.
    type: bool
    default: true
  address:
    description: The worker's address in the fleet.
    type: str
    required: true
  hosts:
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
- name: Have the clock in UTC, and the worker's name lead to its address
  tpufleet.core.host_settings:
    timezone: Etc/UTC
    address: "{{ tpu_internal_ip }}"
  become: true
"""

RETURN = r"""
synced_by:
  description: What keeps the clock right; empty in a container.
  returned: success
  type: str
name:
  description: The host name.
  returned: success
  type: str
"""

import socket
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.hosts_file import with_own_name
from ..module_utils.worker.whole_file import rewrite

ZONES = Path("/usr/share/zoneinfo")
SERVICES = ("chrony", "chronyd", "ntpsec", "ntp", "systemd-timesyncd")


class SettingError(Exception):
    """A setting can't be had; the text is one line for a person."""


def current_zone() -> str:
    """Read the zone that the system has."""
    local = Path("/etc/localtime")
    told = str(local.readlink()) if local.is_symlink() else ""
    return told.partition("zoneinfo/")[2] or "Etc/UTC"


def set_zone(zone: str) -> None:
    """Give the system another zone, by what timedatectl(1) writes. Raises OSError."""
    new = Path("/etc/.localtime.tpufleet")
    new.unlink(missing_ok=True)
    new.symlink_to(ZONES / zone)
    new.replace("/etc/localtime")
    Path("/etc/timezone").write_text(f"{zone}\n", encoding="ascii")


def check_zone(zone: str, bare: bool) -> None:
    """Refuse a zone that there is not; where there are none yet, only if not ``bare``.

    Raises SettingError.
    """
    file = ZONES / zone
    known = file.is_file() and ZONES in file.parents and ".." not in zone
    if not known and (ZONES.is_dir() or not bare):
        raise SettingError(
            f"there is no time zone {zone}: set base_timezone to one that "
            "`timedatectl list-timezones` names, then ansible-playbook setup.yml --tags base"
        )


def first_that(*words: str) -> str:
    """Name the first service for which systemctl with these words ends well; empty if none."""
    for name in SERVICES:
        if succeeds("systemctl", "--quiet", *words, f"{name}.service"):
            return name
    return ""


def succeeds(*words: str) -> bool:
    """Tell whether a command ends well."""
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def sync(check: bool) -> tuple:
    """Have the clock kept right; name what does, and tell whether it was started for it.

    Raises SettingError.
    """
    if succeeds("systemd-detect-virt", "--quiet", "--container"):
        return "", False
    keeper = first_that("is-active")
    if keeper or check:
        return keeper, not keeper
    keeper = first_that("enable", "--now")
    if not keeper:
        raise SettingError(
            "nothing keeps this clock right: add chrony to base_packages, "
            "then ansible-playbook setup.yml --tags base"
        )
    return keeper, True


def main() -> None:
    """Compare and set."""
    module = AnsibleModule(
        argument_spec={
            "timezone": {"type": "str", "required": True},
            "sync": {"type": "bool", "default": True},
            "address": {"type": "str", "required": True},
            "hosts": {"type": "path", "default": "/etc/hosts"},
            "name": {"type": "str"},
        },
        supports_check_mode=True,
    )
    options, check = module.params, module.check_mode
    zone, hosts = options["timezone"], Path(options["hosts"])
    name = options["name"] or socket.gethostname()
    diff = []
    try:
        check_zone(zone, bare=check)
        before = current_zone()
        if before != zone:
            diff.append({"before": f"{before}\n", "after": f"{zone}\n"})
            if not check:
                set_zone(zone)
        text = hosts.read_text(encoding="utf-8") if hosts.exists() else ""
        wanted = with_own_name(text, name, options["address"])
        if wanted != text:
            header = {"before_header": str(hosts), "after_header": str(hosts)}
            diff.append({"before": text, "after": wanted, **header})
            if not check:
                rewrite(hosts, wanted)
        keeper, started = sync(check) if options["sync"] else ("", False)
        if started:
            diff.append({"before": "", "after": f"{keeper or 'time sync'}, running\n"})
    except SettingError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(changed=bool(diff), synced_by=keeper, name=name, diff=diff)


if __name__ == "__main__":
    main()
