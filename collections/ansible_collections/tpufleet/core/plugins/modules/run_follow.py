"""What ansible-doc shows of tpufleet.core.run_follow; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_follow
short_description: Show what a run's workers write to their logs, as it comes, until the run ends
description:
  - Asks each worker for the lines that have come, and shows those that several say once, with their
    names before them. Only reads, so that ending it (CTRL+C) never reaches a trainer.
  - All workers of the play are followed at once, each of which takes a fork.
  - A connection that breaks is tried again for two minutes.
options:
  run:
    description: The run's name. By default the one that is active on the worker, or ended last.
    type: str
  lines:
    description: With how many of the last lines to begin.
    type: int
    default: 50
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Follow the logs
  tpufleet.core.run_follow:
    run: shakespeare
  become: true
"""

RETURN = r"""
state:
  description: How the run stood here at the end, in words.
  returned: success
  type: str
run:
  description: The run that was followed; empty if there is none here.
  returned: success
  type: str
"""
