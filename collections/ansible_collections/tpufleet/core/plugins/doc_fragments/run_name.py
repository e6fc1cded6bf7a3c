"""Which run: the option that the modules of one run share."""

from __future__ import annotations


class ModuleDocFragment:
    """The name of the run that a module is about."""

    DOCUMENTATION = r"""
options:
  run:
    description: The run's name.
    type: str
    required: true
"""
