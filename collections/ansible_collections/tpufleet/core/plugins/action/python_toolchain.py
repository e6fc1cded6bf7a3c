"""The controller's side of tpufleet.core.python_toolchain: send wheels to offline workers."""

from __future__ import annotations

from ..plugin_utils.setup.sends_wheels import SendsWheels


class ActionModule(SendsWheels):
    """Sends wheels to workers without internet access."""
