"""Documentation of tpufleet.core.run_follow for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_follow
short_description: Follow the logs of a run on all its workers until it ends
description:
  - Reads new lines from each worker, and shows lines that several workers have in common once, with
    the names of the workers. It only reads, so ending it (CTRL+C) never reaches a trainer.
  - Follows all workers of the play at once. Each needs a fork.
  - Retries a broken connection for two minutes.
options:
  run:
    description: The run's name. By default the one that is active on the worker, or ended last.
    type: str
  lines:
    description: With how many of the last lines to start.
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
  description: The last status of the run on this worker, as text.
  returned: success
  type: str
run:
  description: The run that was followed; empty if there is none here.
  returned: success
  type: str
"""
