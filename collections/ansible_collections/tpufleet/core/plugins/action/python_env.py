"""The controller's part of tpufleet.core.python_env: wheels where there is no way out."""

from __future__ import annotations

from ..plugin_utils.setup.sends_wheels import SendsWheels


class ActionModule(SendsWheels):
    """Sends wheels where the module asks for them."""

    module = "tpufleet.core.python_env"
