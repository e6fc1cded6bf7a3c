"""Documentation of tpufleet.core.tunnel; what it does is in plugins/action/tunnel.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tunnel
short_description: Lead a port of the controller's loopback to a port of a worker
description:
  - Uses ssh with the settings of the host's own connection, in the background, with a control
    socket by which it is found and closed again.
options:
  port:
    description: The worker's port, on its loopback.
    type: int
    required: true
  local_port:
    description: The controller's port, on its loopback. By default the same as O(port).
    type: int
  state:
    description: Whether the tunnel is there.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author: tpufleet
"""

EXAMPLES = r"""
- name: Look at TensorBoard
  tpufleet.core.tunnel:
    port: 6006
"""

RETURN = r"""
msg:
  description: Where it leads.
  returned: success
  type: str
"""
