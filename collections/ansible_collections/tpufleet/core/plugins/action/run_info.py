"""tpufleet.core.run_info is a module alone, whose code is kept on the worker."""

from ..plugin_utils.kept_modules import WorkerModule as ActionModule

__all__ = ["ActionModule"]
