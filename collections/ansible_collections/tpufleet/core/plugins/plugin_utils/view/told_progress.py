"""Progress of one module that runs on the controller: it writes lines, the action shows them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

LOOKED_EVERY_S = 0.5


class ActionWithProgress(ActionBase):
    """Runs the module of its own name and shows what it writes meanwhile.

    A module has no way to speak before its end. On this computer it can write a file; a module
    that is delegated to another one says nothing, and works as ever.
    """

    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: Any = None, task_vars: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with ``progress_file``, and read that file until it is over."""
        super().run(tmp, task_vars)
        if self._connection.transport != "local":
            return self._execute_module(task_vars=task_vars)
        with tempfile.NamedTemporaryFile(
            "r", prefix="progress-", dir=constants.DEFAULT_LOCAL_TMP, encoding="utf-8"
        ) as file:
            over = threading.Event()
            reader = threading.Thread(target=_show, args=(Path(file.name), over), daemon=True)
            reader.start()
            try:
                arguments = {**self._task.args, "progress_file": file.name}
                return self._execute_module(module_args=arguments, task_vars=task_vars)
            finally:
                over.set()
                reader.join()


def _show(file: Path, over: threading.Event) -> None:
    """Show each line once that is added to the file, until it is over and the last is shown."""
    with file.open(encoding="utf-8") as lines:
        while True:
            last_look = over.wait(LOOKED_EVERY_S)
            for line in lines:
                Display().display(f"  {line.rstrip()}", screen_only=True)
            if last_look:
                return
