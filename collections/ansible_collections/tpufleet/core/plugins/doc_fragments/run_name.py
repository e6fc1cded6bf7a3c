"""The option ``run`` of modules about one run."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment, in the form that ansible-doc reads."""

    DOCUMENTATION = r"""
options:
  run:
    description: The run's name.
    type: str
    required: true
"""
