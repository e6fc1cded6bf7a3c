#!/usr/bin/python
"""Plan a run on the workers of the play."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_plan
short_description: Plan a run on the workers of the play
description:
  - Finds and checks the config, names the run, and gives each of the play's hosts its part by the
    inventory's variables. One run a TPU; a run takes all the workers of its TPU. Works on the
    controller alone.
options:
  run:
    description: The run's name. By default the config's stem; the TPU's name comes behind it where
      there are several.
    type: str
  config:
    description: The config file, looked for where the command was typed, then in O(project).
    type: str
  command:
    description: What to run. By default the project's trainer.
    type: str
  set:
    description: Overrides C(key=value), a list or one line, that are put behind the command.
    type: raw
    default: []
  project:
    description: The project's root.
    type: path
    required: true
  sweep:
    description: A file with one run a TPU, each with overrides of its own; see docs/runs.md.
    type: str
  code:
    description: The code directory. With one, the release that it makes is named.
    type: path
  code_paths:
    description: The parts of it that are wanted; all by default.
    type: list
    elements: str
    default: []
  keep:
    description: Where the controller keeps a copy of the release.
    type: path
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
  run_once: true
"""

RETURN = r"""
command:
  description: The words to run.
  returned: success
  type: list
  elements: str
config:
  description: The config's text, if there is one.
  returned: success
  type: str
config_path:
  description: Where it was found.
  returned: success
  type: str
release:
  description: The release's name, if there is a code directory.
  returned: success
  type: str
parts:
  description: Each host's part, with run, process_id, num_processes, leader, tpu, extra, env and
    chip.
  returned: success
  type: dict
"""
