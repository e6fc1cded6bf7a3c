"""The options of modules that install the wheels of a lock file."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment for the options of ``module_utils/worker/wheels.py``."""

    DOCUMENTATION = r"""
options:
  lock:
    description: The text of the lock file, in pip's format with hashes.
    type: str
    required: true
  leader_only:
    description: Whether to do nothing on workers that copy from a leader. Set it in a first task,
      so that the leaders finish before the others copy.
    type: bool
    default: false
  source:
    description: Where wheels come from. With V(registry), the TPU's leader downloads them from a
      package index. With V(controller), for workers without internet access, the controller
      downloads them and sends them to the leader.
    type: str
    choices: [registry, controller]
    default: registry
  pack:
    description: The path on the worker of a tar file of wheels. Do not set it in a task; the
      controller sets it after it has sent the file.
    type: path
  cache:
    description: With O(source=controller), the directory on the controller for downloaded wheels.
    type: path
    default: ~/.cache/tpufleet
  env:
    description: Additional environment variables for pip and uv, such as UV_INDEX_URL.
    type: dict
    default: {}
"""
