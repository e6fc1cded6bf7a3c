"""Where runs are on a worker: options that modules on workers share."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of modules that read or write what a run has on a worker."""

    DOCUMENTATION = r"""
options:
  state_dir:
    description: Where runs keep what they write.
    type: path
    default: /var/lib/tpufleet
  etc:
    description: Where units find what they need.
    type: path
    default: /etc/tpufleet
"""
