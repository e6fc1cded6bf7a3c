"""The action plugin of tpufleet.core.python_env."""

from __future__ import annotations

from ..plugin_utils.setup.sends_wheels import SendsWheels


class ActionModule(SendsWheels):
    """Sends wheels to workers without internet access."""
