"""Documentation of tpufleet.core.status_follow for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: status_follow
short_description: Show the status again and again until all runs have ended
description:
  - Repeats the command that runs this task, without C(follow), with pauses of five seconds, and
    shows the C(lines) that it writes to its O(status_json). Connections to workers stay open.
  - A terminal shows them in place. Without a terminal, each status is printed below the last one.
  - It only reads, so ending it (CTRL+C) does not affect a run.
options:
  status_json:
    description: The file for the status. By default a temporary file.
    type: path
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Show the status until all runs have ended
  tpufleet.core.status_follow:
"""

RETURN = r"""
lines:
  description: The last status, as lines for people.
  returned: success
  type: list
  elements: str
"""
