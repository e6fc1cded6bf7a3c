"""Documentation of tpufleet.core.confirm; what it does is in plugins/action/confirm.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: confirm
short_description: Have a person type the name of what is about to be destroyed
description:
  - Says what will happen, and fails unless the name is typed or O(agreed) was said.
  - Fails without a terminal, where Ansible's own prompts go on with their default.
author: tpufleet maintainers
attributes:
  check_mode:
    description: Asks nothing, for nothing will happen.
    support: full
options:
  what:
    description: What will happen, as a sentence.
    type: str
    required: true
  name:
    description: What has to be typed.
    type: str
    required: true
  agreed:
    description: It is meant; don't ask.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Have the deletion confirmed
  tpufleet.core.confirm:
    what: This deletes TPU demo (us-central2-b, READY).
    name: demo
    agreed: "{{ yes | default(false) }}"
"""

RETURN = r"""
msg:
  description: What was agreed to, or why it wasn't.
  type: str
  returned: always
"""
