"""The reason why a worker is unreachable, from Ansible's message."""

from __future__ import annotations


def unreachable_text(message: str, tpu: str = "") -> str:
    """Return ssh's error from Ansible's ``message``; the whole message if it has no ssh error.

    If ``tpu`` is given, the text ends with the command that runs doctor.yml for this TPU.
    """
    line = " ".join(message.split())
    reason = line[max(line.rfind("ssh: "), 0) :].rstrip(" :.")
    if not tpu:
        return reason
    return f"{reason}. Find the cause: ansible-playbook playbooks/doctor.yml -e tpu={tpu}"
