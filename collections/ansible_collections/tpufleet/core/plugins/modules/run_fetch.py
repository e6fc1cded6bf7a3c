"""Documentation of tpufleet.core.run_fetch for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_fetch
short_description: Bring a run's checkpoints from a bucket to this controller
description:
  - Works when no TPU is left, for the run's record says where the checkpoints are. Does nothing for
    a run whose checkpoints are in a directory. Works on the controller alone.
  - Downloads exactly the objects that the bucket listed, by generation, and verifies their
    checksums. A file that is here already with the same checksum is not downloaded again.
options:
  to:
    description: The directory that gets C(checkpoints/STEP/...).
    type: path
    required: true
  which:
    description: All checkpoints, or the newest that is finished and can be read.
    type: str
    choices: [newest, all]
    default: all
  pattern:
    description:
      - What the checkpoints of the run's trainer are called, relative to their place, such as
        V(*/step-*); a part for each directory. The newest is the one with the highest number in
        the last part.
      - Without a pattern, those of this project's trainer are known by their manifests, those of
        other trainers by Orbax's layout, C(STEP) or C(NAME_STEP) with a C(commit_success.txt).
    type: str
    default: ""
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
  description: What was downloaded, relative to the run's place.
  returned: success
  type: list
  elements: str
passed_over:
  description: Which newer checkpoints are not finished or can't be read, and why.
  returned: success
  type: list
  elements: str
unreadable:
  description: Which objects could not be downloaded, and why; the others are here.
  returned: when there is a bucket
  type: list
  elements: str
missing:
  description: That there is no such checkpoint, and why; empty if there is.
  returned: when there is a bucket
  type: str
"""
