#!/usr/bin/python
"""Bring a run's checkpoints from a bucket to this controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_fetch
short_description: Bring a run's checkpoints from a bucket to this controller
description:
  - Where they are stands in the run's record, so it works when no TPU is left. Does nothing for a
    run whose checkpoints are in a directory. Works on the controller alone.
  - What is here already in its whole length is not brought again.
options:
  to:
    description: The directory that gets C(checkpoints/STEP/...).
    type: path
    required: true
  which:
    description: All checkpoints, or the newest that is sound by its manifest.
    type: str
    choices: [newest, all]
    default: all
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.fleet_state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Bring the newest sound checkpoint
  tpufleet.core.run_fetch:
    run: shakespeare
    fleet_state: gs://bucket/fleet
    to: fetched/shakespeare
    which: newest
"""

RETURN = r"""
place:
  description: Where the checkpoints were; empty for a run whose checkpoints are in no bucket.
  returned: success
  type: str
files:
  description: What was brought, relative to the run's place.
  returned: success
  type: list
  elements: str
passed_over:
  description: Which checkpoints newer than the newest sound one are not sound, and why.
  returned: success
  type: list
  elements: str
"""
