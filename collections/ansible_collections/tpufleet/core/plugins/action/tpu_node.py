"""The controller's side of tpufleet.core.tpu_node: shows how far the module is."""

from __future__ import annotations

from ..plugin_utils.view.told_progress import ActionWithProgress


class ActionModule(ActionWithProgress):
    """Runs the module, which does the work."""
