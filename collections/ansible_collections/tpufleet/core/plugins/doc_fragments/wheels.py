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
    description: Do nothing on a worker that has a leader to copy from.
    type: bool
    default: false
  source:
    description: Who downloads wheels. With V(controller), for workers without internet access, the
      controller downloads them and sends them to the leader.
    type: str
    choices: [registry, controller]
    default: registry
  pack:
    description: A tar file of wheels on the worker, which the controller sends.
    type: path
  cache:
    description: The controller's directory of downloads.
    type: path
    default: ~/.cache/tpufleet
  env:
    description: Additional environment variables for pip and uv, such as UV_INDEX_URL.
    type: dict
    default: {}
  root:
    description: The directory of tpufleet on the worker.
    type: path
    default: /opt/tpufleet
"""
