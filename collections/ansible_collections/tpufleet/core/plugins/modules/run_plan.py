"""Documentation of tpufleet.core.run_plan for ansible-doc; the code is in plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_plan
short_description: Plan the runs of a play and record them as wanted
description:
  - Runs on the controller only. Finds and checks the config, names the run, and assigns a process
    to each host of the play. Each TPU and each multislice gets one run, which uses all its workers.
    If a host is a single chip of a worker, each chip gets one run. Stores a copy of the code and of
    the lock file on the controller for relaunches.
  - With O(relaunch), the settings of the run come from its record. O(outputs) is used only if the
    record names no bucket for the output.
  - Writes the next attempt to each run's record, so that the run can start at once. Does not write
    the record in a relaunch, if the run is wanted already, or if the same launch may have finished
    the run. Such a run must first be checked on its workers. M(tpufleet.core.run_judge) then writes
    its record.
  - Refuses a run that may still train on another READY TPU.
options:
  run:
    description: The run's name. By default the name of the config file without its extension. If
      there are several runs or a sweep, the name of the TPU or of the sweep's entry is appended.
      Required without O(config) and with O(relaunch).
    type: str
  config:
    description: The config file, searched in the current directory and then in O(project).
    type: str
  command:
    description: The trainer's command. By default the command of this project's trainer.
    type: str
  image:
    description: The container image in whose files O(command) runs, C(REGISTRY/NAME@sha256:DIGEST).
      Needs O(command). By default the command uses the worker's own files.
    type: str
    default: ""
  starts_in_image:
    description: With O(image), whether the command starts in the image's working directory instead
      of the release.
    type: bool
    default: false
  set:
    description:
      - Settings C(key=value) that override those of the config, as a list or in one line. They
        replace C({set}) in O(command); it is an error if O(command) has no C({set}).
    type: raw
    default: []
  project:
    description: The directory of tpufleet on the controller.
    type: path
    required: true
  sweep:
    description: A file with one run per TPU, each with its own overrides; see docs/fleets.md.
    type: str
  code:
    description: The directory of the code, from which the release is created.
    type: path
    required: true
  code_paths:
    description: The only files and directories of O(code) to include in the release. By default
      all.
    type: list
    elements: str
    default: []
  lock:
    description: The lock file of the Python environment.
    type: path
    required: true
  jax_requirements:
    description: The name of the lock file for these workers, such as V(worker-tpu).
    type: str
    required: true
  checkpoints:
    description: The directory or C(gs://) URI below which each run has its checkpoints. A run whose
      earlier checkpoints are in another location is refused, unless the command line has
      C(-e checkpoints=).
    type: str
    required: true
  compile_cache:
    description: Where JAX stores compiled programs. Empty for a directory on each worker.
    type: str
    default: ""
  outputs:
    description: Where the output of runs is stored. With a C(gs://) URL, the workers write it there
      themselves, below the run's name. With a directory or an empty value, the controller collects
      it.
    type: str
    default: ""
  volatile_checkpoints:
    description: Whether checkpoints may be on disks that are lost with the TPU.
    type: bool
    default: false
  env:
    description: Environment variables of the trainer, as a mapping or in one line of NAME=value.
      Variables that look like secrets are refused.
    type: raw
    default: {}
  rendezvous_seconds:
    description: How many seconds the processes of an attempt wait for each other.
    type: int
    default: 120
  state_dir:
    description: The controller's state directory, for copies of releases and lock files.
    type: path
    required: true
  relaunch:
    description: Whether to launch O(run) again with the settings in its record. The run must be
      wanted.
    type: bool
    default: false
  wait:
    description: What the caller will wait for after the start. The module itself does not wait. It
      has this option to refuse an invalid value before it records anything.
    type: str
    choices: [started, first_step, done]
    default: first_step
extends_documentation_fragment:
  - tpufleet.core.fleet_state
  - tpufleet.core.check_mode
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
    state_dir: ~/fleet
    fleet_state: ~/fleet
  run_once: true
"""

RETURN = r"""
release:
  description: The release's name.
  returned: success
  type: str
wait:
  description: The value of O(wait).
  returned: success
  type: str
launches:
  description: Each run's launch, by the run's name. module_utils/worker/launch_spec.py lists the
    fields of a launch.
  returned: success
  type: dict
recorded:
  description: A dictionary for each run, by name. C(is_recorded) says whether the attempt was
    recorded, so that the run may start at once. C(was_wanted) says whether the run was wanted
    before. C(finished_attempt) is the attempt that may have marked this launch as done, or 0;
    C(finished_launch) is the time of its launch in unix seconds.
  returned: success
  type: dict
notes:
  description: For each run that differs from its last launch in more than the release, a sentence
    with the differences.
  returned: success
  type: list
  elements: str
processes:
  description: The process of each host, by host, with C(run), C(process_id), C(tpu) and C(worker).
    C(worker) is the worker of the chip if the run uses a single chip, otherwise it is empty.
  returned: success
  type: dict
compile:
  description: For each different training step of the launches, the arguments of C(python -m train)
    that compile it for its TPU. Steps that the controller can't compile are left out, such as those
    of other trainers, of single chips and on CPUs. Empty in a relaunch.
  returned: success
  type: list
  elements: list
"""
