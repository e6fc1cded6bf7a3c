"""The attributes of modules that support check mode and diff mode."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment that modules name in ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Changes nothing, and returns what would change.
    support: full
  diff_mode:
    description: Shows what changes.
    support: full
"""
