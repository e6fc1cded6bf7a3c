"""Documentation of tpufleet.core.status_follow for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: status_follow
short_description: Show the status repeatedly until all runs have ended
description:
  - Repeats the C(ansible-playbook) command that runs this task, without C(-e follow), and waits
    five seconds after each repetition. Each repetition writes its status to O(status_json), and
    this module shows the C(lines) in that file. Ssh connections to workers stay open.
  - A run that is wanted has not ended, even if no worker has it.
  - On a terminal, each status replaces the last one. Without a terminal, it is printed below the
    last one.
  - Ending the task with CTRL+C does not affect a run.
options:
  status_json:
    description: The JSON file to which each repetition writes its status. By default a temporary
      file.
    type: path
extends_documentation_fragment: tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Show the status until all runs have ended
  tpufleet.core.status_follow:
"""

RETURN = r"""
lines:
  description: The last status, as lines of text.
  returned: success
  type: list
  elements: str
"""
