#!/usr/bin/python
"""Have the fleet's own nftables table, and take it back if it cuts ssh."""

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall
short_description: Load the fleet's nftables table, which rolls back unless it is confirmed
description:
  - With O(state=present), a table that differs is loaded, and a systemd timer removes it again
    after O(seconds). No other table of the worker changes.
  - With O(state=confirmed), the timer is stopped and the table is kept across reboots. Use it over
    a new connection (M(ansible.builtin.meta) with C(reset_connection)), which proves that the rules
    let ssh in.
  - With O(state=absent), the table and everything that keeps it are removed.
options:
  state:
    description: What to do.
    type: str
    choices: [present, confirmed, absent]
    required: true
  peers:
    description: Addresses and networks from which everything may come.
    type: list
    elements: str
    default: []
  open_ports:
    description: What may come from outside beside ssh, such as 60000-61000/udp.
    type: list
    elements: str
    default: []
  seconds:
    description: After how many seconds a table that is not confirmed is removed.
    type: int
    default: 45
  path:
    description: The table's file.
    type: path
    default: /etc/tpufleet/firewall.nft
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author: tpufleet
"""

EXAMPLES = r"""
- name: Load the firewall rules
  tpufleet.core.firewall:
    state: present
    peers: [10.128.0.2, 10.128.0.3]
  become: true
  register: firewall

- name: Close the connection, which is older than the rules
  ansible.builtin.meta: reset_connection

- name: Keep the rules
  tpufleet.core.firewall:
    state: confirmed
  become: true
  when: firewall.pending
"""

RETURN = r"""
pending:
  description: Whether the table waits to be confirmed over a new connection.
  returned: state is present
  type: bool
"""

import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.worker.firewall_table import TABLE, table_text

UNIT = Path("/etc/systemd/system/tpufleet-firewall.service")
WAITING = Path("/run/tpufleet-firewall.new")
LOADED = Path("/run/tpufleet-firewall.loaded")
ROLLBACK = "tpufleet-firewall-rollback"
UNIT_TEXT = """[Unit]
Description=The fleet's own firewall table
Before=network-pre.target
Wants=network-pre.target
ConditionPathExists={path}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f {path}
ExecReload=/usr/sbin/nft -f {path}
ExecStop=/usr/sbin/nft delete table {table}

[Install]
WantedBy=multi-user.target
"""


class FirewallError(Exception):
    """A step failed; the text is one line for a person."""


def tell(*words: str, stdin: str | None = None, good: bool = True) -> str:
    """Run a tool and give what it says. Raises FirewallError."""
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    except OSError as error:
        raise FirewallError(
            f"{words[0]}: {error.strerror}: ansible-playbook setup.yml --tags base mends it"
        ) from error
    if good and done.returncode:
        lines = done.stderr.strip().splitlines() or ["no word of why"]
        raise FirewallError(f"{' '.join(words[:3])}: {lines[0]}")
    return done.stdout if not done.returncode else ""


def listed() -> str:
    """Give the table as the kernel has it now; empty if there is none."""
    return tell("nft", "list", "table", *TABLE.split(), good=False)


def ssh_ports() -> list:
    """Ask sshd where it listens; it must never be cut off."""
    told = tell("/usr/sbin/sshd", "-T", good=False).splitlines()
    ports = [int(line.split()[1]) for line in told if line.startswith("port ")]
    return ports or [22]


def read(path: Path) -> str:
    """Read a file that may not be there."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def load(text: str, path: Path, seconds: int) -> None:
    """Load the table, and have it taken back in a while: to the file that is kept, or to none.

    Raises FirewallError; then the rules are as they were.
    """
    tell("nft", "--check", "--file", "-", stdin=text)
    back = f"nft delete table {TABLE}; test ! -e {path} || nft -f {path}; rm -f {WAITING}"
    tell("systemctl", "stop", f"{ROLLBACK}.timer", good=False)
    tell("systemctl", "reset-failed", f"{ROLLBACK}.service", good=False)
    words = ["systemd-run", f"--unit={ROLLBACK}", f"--on-active={seconds}", "--collect"]
    tell(*words, "--timer-property=AccuracySec=1s", "/bin/sh", "-c", back)
    WAITING.write_text(text, encoding="utf-8")
    tell("nft", "--file", "-", stdin=text)


def confirm(path: Path) -> None:
    """Keep the table that waits. Raises FirewallError, OSError."""
    if not WAITING.exists():
        raise FirewallError(
            "the firewall's table was taken back before it was confirmed: "
            "ansible-playbook setup.yml; if that comes again, firewall_open_ports or sshd's ports "
            "are not what they seem"
        )
    tell("systemctl", "stop", f"{ROLLBACK}.timer")
    new = path.with_name(f".{path.name}.new")
    new.write_text(WAITING.read_text(encoding="utf-8"), encoding="utf-8")
    new.chmod(0o600)
    new.replace(path)
    unit = UNIT_TEXT.format(path=path, table=TABLE)
    if read(UNIT) != unit:
        UNIT.write_text(unit, encoding="utf-8")
    tell("systemctl", "enable", "--quiet", "--no-reload", UNIT.name)
    # One reload for both, since each asks all of systemd anew.
    unread = ["systemctl", "show", "--value", "--property=NeedDaemonReload", UNIT.name]
    if tell(*unread).strip() == "yes":
        tell("systemctl", "daemon-reload")
    tell("systemctl", "reload-or-restart", UNIT.name)
    LOADED.write_text(listed(), encoding="utf-8")
    WAITING.unlink()


def remove(path: Path) -> None:
    """Take the table away with all that keeps it. Raises FirewallError, OSError."""
    tell("systemctl", "disable", "--quiet", "--now", UNIT.name, good=False)
    tell("nft", "delete", "table", *TABLE.split(), good=False)
    for file in (path, UNIT, WAITING, LOADED):
        file.unlink(missing_ok=True)
    tell("systemctl", "daemon-reload")


def is_kept(text: str, path: Path) -> bool:
    """Tell whether the table is loaded as it should be, and will be after a reboot."""
    unit = UNIT_TEXT.format(path=path, table=TABLE)
    here = listed()
    # After a reboot there is no word of how the kernel lists it: believe systemd, which loaded it.
    loaded = here and (not LOADED.exists() or LOADED.read_text(encoding="utf-8") == here)
    enabled = tell("systemctl", "is-enabled", UNIT.name, good=False).strip() == "enabled"
    return bool(loaded and enabled and read(path) == text and read(UNIT) == unit)


def main() -> None:
    """Compare, then load, confirm or remove."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["present", "confirmed", "absent"],
                "required": True,
            },
            "peers": {"type": "list", "elements": "str", "default": []},
            "open_ports": {"type": "list", "elements": "str", "default": []},
            "seconds": {"type": "int", "default": 45},
            "path": {"type": "path", "default": "/etc/tpufleet/firewall.nft"},
        },
        supports_check_mode=True,
    )
    options, path = module.params, Path(module.params["path"])
    header = {"before_header": str(path), "after_header": str(path)}
    try:
        before = read(path)
        if options["state"] == "absent":
            there = bool(before or UNIT.exists())
            if there and not module.check_mode:
                remove(path)
            module.exit_json(changed=there, diff={"before": before, "after": "", **header})
        if options["state"] == "confirmed":
            if not module.check_mode:
                confirm(path)
            module.exit_json(changed=False)
        text = table_text(options["peers"], ssh_ports(), options["open_ports"])
        bare = module.check_mode and not Path("/usr/sbin/nft").exists()
        kept = not bare and is_kept(text, path)
        if not kept and not module.check_mode:
            load(text, path, options["seconds"])
    except FirewallError as error:
        module.fail_json(msg=str(error))
    except ValueError as error:
        module.fail_json(msg=f"firewall: {error}")
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    diff = {"before": before, "after": text, **header}
    module.exit_json(changed=not kept, pending=not kept and not module.check_mode, diff=diff)


if __name__ == "__main__":
    main()
