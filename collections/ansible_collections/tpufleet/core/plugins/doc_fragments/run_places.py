"""The options with directories, of modules that read or write a run's files on a worker."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment, in the form that ansible-doc reads."""

    DOCUMENTATION = r"""
options:
  state_dir:
    description: The directory of what runs write.
    type: path
    default: /var/lib/tpufleet
  etc:
    description: The directory of what runs' units read.
    type: path
    default: /etc/tpufleet
"""
