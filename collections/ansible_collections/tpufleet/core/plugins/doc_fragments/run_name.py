"""The option ``run`` of modules about one run."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment that modules name in ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
options:
  run:
    description: The run's name.
    type: str
    required: true
"""
