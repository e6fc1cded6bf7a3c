"""Documentation of tpufleet.core.run_plan for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_plan
short_description: Plan the runs of a play and record them as wanted
description:
  - Finds and checks the config, names the run, and gives each of the play's hosts its process by
    the inventory's variables. One run a TPU; a run uses all workers of its TPU. Keeps a copy of the
    code and of the lock file on the controller, for relaunches. Works on the controller alone.
  - With O(relaunch) everything but the run's name is read from its record.
  - Writes each run's record with its next attempt, so that it may start at once. A run that is
    recorded as running, or that is done exactly as planned, is left alone; its workers are asked
    first.
options:
  run:
    description: The run's name. By default the config's stem; with several TPUs, the TPU's name is
      added.
    type: str
  config:
    description: The config file, looked for in the current directory, then in O(project).
    type: str
  command:
    description: What to run. By default the project's trainer.
    type: str
  set:
    description:
      - Overrides C(key=value), a list or one line, which replace C({set}) in O(command). The
        project's trainer takes them last. A command without C({set}) refuses them.
    type: raw
    default: []
  project:
    description: The project's root.
    type: path
    required: true
  sweep:
    description: A file with one run per TPU, each with its own overrides; see docs/fleets.md.
    type: str
  code:
    description: The code directory, of which a release is made.
    type: path
    required: true
  code_paths:
    description: The parts of it that the release holds; all by default.
    type: list
    elements: str
    default: []
  lock:
    description: The lock file of the Python environment.
    type: path
    required: true
  jax_requirements:
    description: The name of the lock file's set.
    type: str
    required: true
  checkpoints:
    description: The directory or C(gs://) address in which each run has its checkpoints.
    type: str
    required: true
  compile_cache:
    description: Where JAX keeps compiled programs; empty for a directory on each worker.
    type: str
    default: ""
  outputs:
    description: Where the output of runs is stored. Workers write it to a C(gs://) URL themselves,
      below the run's name. With a directory or without a value, the controller collects it.
    type: str
    default: ""
  volatile_checkpoints:
    description: Whether checkpoints that are lost with the TPU are accepted.
    type: bool
    default: false
  env:
    description: The trainer's environment, a mapping or one line of NAME=value. Nothing secret.
    type: raw
    default: {}
  rendezvous_seconds:
    description: Seconds that the processes of an attempt wait for each other.
    type: int
    default: 120
  kept:
    description: Where the controller keeps releases and lock files.
    type: path
    required: true
  relaunch:
    description: Plan the launch that the record of O(run) holds.
    type: bool
    default: false
  same_place:
    description: Whether a run whose checkpoints are in another location is refused, because nobody
      named a location for this launch.
    type: bool
    default: false
  wait:
    description: What the launch waits for. It is checked here, before anything is recorded.
    type: str
    choices: [started, first_step, done]
    default: first_step
extends_documentation_fragment: tpufleet.core.fleet_state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Plan the run
  tpufleet.core.run_plan:
    config: train/configs/shakespeare.yml
    project: "{{ playbook_dir }}/.."
    code: "{{ playbook_dir }}/.."
    lock: "{{ playbook_dir }}/../requirements/worker-cpu.lock"
    jax_requirements: worker-cpu
    checkpoints: gs://bucket/checkpoints
    kept: ~/fleet
    fleet_state: ~/fleet
  run_once: true
"""

RETURN = r"""
release:
  description: The release's id.
  returned: success
  type: str
wait:
  description: What the launch waits for.
  returned: success
  type: str
launches:
  description: Each run's launch, by the run's name (module_utils/worker/launch_spec.py).
  returned: success
  type: dict
recorded:
  description: By the run's name C(is_recorded), whether it was recorded and may start at once,
    C(was_wanted), whether it was wanted before, and C(finished_attempt), the attempt that may
    have left a marker that this launch is done, or 0.
  returned: success
  type: dict
processes:
  description: Each host's process, with C(run), C(process_id), C(tpu) and C(worker).
  returned: success
  type: dict
"""
