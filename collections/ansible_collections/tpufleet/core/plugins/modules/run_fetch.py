"""Documentation of tpufleet.core.run_fetch for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_fetch
short_description: Download a run's checkpoints from a bucket to the controller
description:
  - Runs on the controller only. The run's record has the location of the checkpoints, so no TPU is
    needed. Does nothing for a run whose checkpoints are not in a bucket.
  - Downloads the generation of each object that the bucket has listed, and verifies its checksum.
    An object is not downloaded again if the local file has the same checksum.
options:
  to:
    description: The local directory. The checkpoints are stored below it as
      C(checkpoints/STEP/...).
    type: path
    required: true
  which:
    description: Whether to download all checkpoints, or only the newest one that is finished and
      readable.
    type: str
    choices: [newest, all]
    default: all
  pattern:
    description:
      - A pattern of the checkpoints' paths, relative to the run's checkpoint location, such as
        V(*/step-*). The newest checkpoint is the one with the highest number in the last part of
        its path.
      - Without a pattern, checkpoints are recognized by the manifest that this project's trainer
        writes, or by Orbax's layout, C(STEP) or C(NAME_STEP) with a C(commit_success.txt).
    type: str
    default: ""
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.fleet_state
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Download the newest finished checkpoint
  tpufleet.core.run_fetch:
    run: shakespeare
    fleet_state: gs://bucket/fleet
    to: fetched/shakespeare
    which: newest
"""

RETURN = r"""
place:
  description: The bucket location of the checkpoints. Empty if they are not in a bucket.
  returned: success
  type: str
files:
  description: The downloaded files, relative to the checkpoint location.
  returned: success
  type: list
  elements: str
passed_over:
  description: The checkpoints that are newer than the downloaded one but not finished or not
    readable, each with the reason.
  returned: success
  type: list
  elements: str
unreadable:
  description: The objects that could not be downloaded, each with the error. All others were
    downloaded.
  returned: when there is a bucket
  type: list
  elements: str
missing:
  description: Why there is no checkpoint to download. Empty if there is one.
  returned: when there is a bucket
  type: str
"""
