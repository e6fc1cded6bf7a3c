"""The attributes of modules that support check mode, but not diff mode."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment that modules name in ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Changes nothing.
    support: full
  diff_mode:
    description: Shows no differences.
    support: none
"""
