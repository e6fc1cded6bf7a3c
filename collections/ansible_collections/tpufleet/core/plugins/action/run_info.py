"""The controller's side of tpufleet.core.run_info: note when the worker was asked."""

import time
from collections.abc import Mapping
from typing import Any

from ..plugin_utils.setup.kept_modules import WorkerModule


class ActionModule(WorkerModule):
    """Asks a worker about its runs."""

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the module's answer, with the time by this controller's clock."""
        asked_at = time.time()
        return super().run(tmp, task_vars) | {"asked_at": asked_at}
