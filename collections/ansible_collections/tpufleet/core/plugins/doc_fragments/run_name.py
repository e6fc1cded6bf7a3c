"""The option ``run`` of modules about one run."""

from __future__ import annotations


class ModuleDocFragment:
    """Read by ansible-doc."""

    DOCUMENTATION = r"""
options:
  run:
    description: The run's name.
    type: str
    required: true
"""
