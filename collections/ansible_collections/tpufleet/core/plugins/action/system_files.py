"""tpufleet.core.system_files is a module alone, whose code is kept on the worker."""

from ..plugin_utils.setup.kept_modules import WorkerModule as ActionModule

__all__ = ["ActionModule"]
