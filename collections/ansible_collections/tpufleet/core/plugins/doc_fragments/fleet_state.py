"""Where the records of runs are: options that steps of the controller share."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of what reads or changes the records of runs."""

    DOCUMENTATION = r"""
options:
  fleet_state:
    description: A directory of the controller's, or C(gs://bucket/prefix), which several
      controllers can share; it is asked with the key and the endpoint of the variable C(tpu_api).
    type: str
    required: true
"""
