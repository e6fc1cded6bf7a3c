"""The reason why a worker is unreachable, from Ansible's message."""

from __future__ import annotations


def unreachable_text(message: str, tpu: str = "") -> str:
    """Return ssh's error, or Ansible's whole message if it has none.

    If the TPU's name is given, the text ends with the doctor command for it.
    """
    line = " ".join(message.split())
    reason = line[max(line.rfind("ssh: "), 0) :].rstrip(" :.")
    if not tpu:
        return reason
    return f"{reason}. Find the cause: ansible-playbook playbooks/doctor.yml -e tpu={tpu}"
