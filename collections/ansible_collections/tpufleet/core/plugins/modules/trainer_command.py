"""Documentation of tpufleet.core.trainer_command for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trainer_command
short_description: Plan a command of this project's trainer for a run
description:
  - Reads the run's record and returns a launch that runs C(python -m train COMMAND) with the
    config, overrides, release, environment and checkpoints of the run's last launch. Pass the
    launch to M(tpufleet.core.run_command), which runs it. This module runs on the controller only.
  - The launch has one process on each worker of the TPU. It has only one process, on the first
    worker, for V(export), for a run on one chip, and if O(env) or the run's own environment sets
    C(JAX_PLATFORMS) to C(cpu).
  - Fails for a run of another trainer or with a container image, and if a worker that the launch
    needs is not READY.
options:
  command:
    description: The command of the trainer to run.
    type: str
    choices: [sample, eval, export, bench]
    required: true
  state_dir:
    description: The controller's state directory, with copies of releases and lock files.
    type: path
    required: true
  tpu:
    description: The TPU that the command runs on. By default the TPU of the run.
    type: str
    default: ""
  set:
    description: Settings C(key=value) that override those of the launch, as a list or in one line.
    type: raw
    default: []
  env:
    description: Environment variables that override those of the launch, as a mapping, JSON or one
      line.
    type: raw
    default: {}
  step:
    description: The step of the checkpoint to load. By default the newest. Not for V(bench).
    type: int
  steps:
    description: How many steps V(bench) measures.
    type: int
  names:
    description: The naming scheme of parameters for V(export).
    type: str
    choices: [transformers, plain]
  to:
    description: Where V(export) writes, either C(gs://BUCKET/PREFIX) or a directory of the
      controller. For a directory, the export is written to RV(export) on the worker, and you must
      copy it from there.
    type: str
    default: ""
extends_documentation_fragment:
  - tpufleet.core.run_name
  - tpufleet.core.fleet_state
  - tpufleet.core.check_mode
author: tpufleet
"""

EXAMPLES = r"""
- name: Plan the command
  tpufleet.core.trainer_command:
    command: sample
    run: shakespeare
    fleet_state: gs://bucket/fleet
    state_dir: ~/.cache/tpufleet
  register: planned
"""

RETURN = r"""
workers:
  description: The hosts that the command runs on, in the order of its processes.
  returned: success
  type: list
  elements: str
launch:
  description: The launch of the command, for M(tpufleet.core.run_command).
  returned: success
  type: dict
code:
  description: The path of the run's release in this controller's cache. Empty if the release is not
    there or is damaged.
  returned: success
  type: str
setup:
  description: The command that installs the launch's environment on the TPU.
  returned: success
  type: str
export:
  description: The directory on the worker to which V(export) writes. Empty for other commands, and
    if O(to) is a bucket.
  returned: success
  type: str
"""
