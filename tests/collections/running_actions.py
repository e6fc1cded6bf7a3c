"""Run an action plugin of the collection in this process, as a task of a playbook runs it."""

from types import ModuleType, SimpleNamespace
from typing import Any

from ansible.playbook.task import Task

from tests.localcloud.api.local_api import PROJECT, LocalApi


def run_action(plugin: ModuleType, *, check: bool = False, **options: Any) -> dict[str, Any]:
    """Run the action on the controller and return its result."""
    task = Task()
    task.args, task.check_mode = options, check
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="unused"))
    return plugin.ActionModule(task, connection, None, None, None).run()


def api_variable(local_api: LocalApi) -> dict[str, Any]:
    """Return the variable ``tpu_api`` of an inventory that lists all zones of this cloud."""
    return {
        "project": PROJECT,
        "endpoint": local_api.endpoint,
        "credentials_file": str(local_api.credentials_file),
        "zones": ["-"],
    }
