"""The action plugin of tpufleet.core.python_toolchain."""

from __future__ import annotations

from ..plugin_utils.setup.sends_wheels import SendsWheels


class ActionModule(SendsWheels):
    """Sends wheels to workers without internet access."""
