"""The option ``fleet_state`` of modules that read or change run records."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment that modules name in ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
options:
  fleet_state:
    description: Where the run records are stored, either in a directory on the controller or in
      C(gs://bucket/prefix), which several controllers can share.
    type: str
    required: true
  api:
    description: The inventory's variable C(tpu_api), with the credentials and the endpoint for
      buckets.
    type: dict
    default: {}
"""
