"""Documentation of tpufleet.core.requirements_lock for ansible-doc; see plugins/action."""

from __future__ import annotations

DOCUMENTATION = r"""
module: requirements_lock
short_description: Create the lock file for a user's packages, on the controller
description:
  - Locks requirements with hashes, for workers with Python 3.12 or newer. Only packages with wheels
    are used, because building a package would run its code on the controller.
  - If the requirements have not changed, the lock file changes only with O(relock). If they have
    changed, the lock file keeps its versions where possible. A first lock file prefers the versions
    in the project's lock files. A lock file that setup did not create is an error.
options:
  lock:
    description: The path of the lock file to create or update.
    type: path
    required: true
  requirements:
    description: A file with all requirements of the environment. By default the project's own file,
      with the versions in the project's lock file.
    type: path
  extras:
    description: Requirements in addition to those in the file, such as C(wandb).
    type: list
    elements: str
    default: []
  project:
    description: The directory with the project's requirements and lock files.
    type: path
    required: true
  jax_requirements:
    description: The name of the project's requirements and lock files for these workers, such as
      V(worker-tpu).
    type: str
    required: true
  env:
    description: Additional environment variables for uv, such as C(UV_INDEX_URL).
    type: dict
    default: {}
  relock:
    description: Whether to update all packages to the newest versions that the requirements allow.
    type: bool
    default: false
extends_documentation_fragment: tpufleet.core.diff_mode
attributes:
  check_mode:
    details: In check mode, a lock file that does not exist yet is an error.
author: tpufleet
"""

EXAMPLES = r"""
- name: Lock the packages of a trainer
  tpufleet.core.requirements_lock:
    requirements: mine.in
    lock: mine.lock
    project: "{{ playbook_dir }}/../requirements"
    jax_requirements: worker-tpu
"""

RETURN = r"""
lock:
  description: The path of the lock file.
  returned: success
  type: str
"""
