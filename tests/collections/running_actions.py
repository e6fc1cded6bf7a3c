"""Run an action plugin of the collection in this process, as a task of a playbook runs it."""

from types import ModuleType, SimpleNamespace
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar

from tests.localcloud.api.local_api import PROJECT, LocalApi


def run_action(
    plugin: ModuleType,
    variables: dict[str, Any] | None = None,
    /,
    *,
    check: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Run the action on the controller, with these variables of the host; return its result."""
    task = Task()
    task.args, task.check_mode = options, check
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused"))
    loader = DataLoader()
    return plugin.ActionModule(task, connection, None, loader, Templar(loader)).run(None, variables)


def api_variable(local_api: LocalApi) -> dict[str, Any]:
    """Return the inventory's variable ``tpu_api`` for this API and all of its zones."""
    return {
        "project": PROJECT,
        "endpoint": local_api.endpoint,
        "credentials_file": str(local_api.credentials_file),
        "zones": ["-"],
    }
