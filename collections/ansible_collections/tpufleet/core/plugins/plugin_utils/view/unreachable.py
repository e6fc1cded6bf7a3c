"""The reason why a worker is unreachable, from Ansible's message."""

from __future__ import annotations


def unreachable_text(message: str, tpu: str = "") -> str:
    """Return ssh's error, with the command that finds the cause if the TPU's name is given."""
    reason = message[max(message.rfind("ssh: "), 0) :].rstrip(" :.")
    if not tpu:
        return reason
    return f"{reason}. Find the cause: ansible-playbook playbooks/doctor.yml -e tpu={tpu}"
