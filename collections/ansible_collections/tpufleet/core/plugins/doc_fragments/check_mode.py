"""The attributes of modules that support check mode, but not diff mode."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment, in the form that ansible-doc reads."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Changes nothing.
    support: full
  diff_mode:
    description: Shows no differences.
    support: none
"""
