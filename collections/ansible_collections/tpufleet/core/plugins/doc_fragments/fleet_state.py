"""The option ``fleet_state`` of modules that read or change run records."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment, in the form that ansible-doc reads."""

    DOCUMENTATION = r"""
options:
  fleet_state:
    description: Where the run records are, a directory of the controller or C(gs://bucket/prefix),
      which several controllers can share. A bucket is read with the settings of C(tpu_api).
    type: str
    required: true
"""
