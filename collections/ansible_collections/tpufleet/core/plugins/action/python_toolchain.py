"""The controller's part of tpufleet.core.python_toolchain: wheels for workers without internet."""

from __future__ import annotations

from ..plugin_utils.setup.sends_wheels import SendsWheels


class ActionModule(SendsWheels):
    """Sends wheels if the module asks for them."""
