"""The options ``state_dir`` and ``etc``: where a worker has the files of its runs."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation fragment, in the form that ansible-doc reads."""

    DOCUMENTATION = r"""
options:
  state_dir:
    description: The directory on the worker for the files that runs write, such as logs and
      heartbeats.
    type: path
    default: /var/lib/tpufleet
  etc:
    description: The directory on the worker for the files that the systemd units of runs read.
    type: path
    default: /etc/tpufleet
"""
