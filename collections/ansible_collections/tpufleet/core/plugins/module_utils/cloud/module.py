"""Options and error handling shared by all modules that call Google's APIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from .errors import CloudError
from .session import ApiSettings
from .tpu_api import TpuApi

#: Options of modules that manage one named resource in a zone.
NAMED_OPTIONS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "zone": {"type": "str", "required": True},
    "timeout": {"type": "int", "default": 1800},
}
#: The value of AnsibleModule's ``required_if`` for modules that create TPUs.
REQUIRED_TO_CREATE = (("state", "present", ["runtime_version"]),)


def run_cloud_module(
    work: Callable[[AnsibleModule, TpuApi], dict[str, Any]],
    options: Mapping[str, Any],
    *,
    required_if: Sequence[tuple[str, object, Sequence[str]]] = (),
) -> None:
    """Run a module: parse its options and exit with the result of ``work``, or with its error.

    ``options`` and ``required_if`` are passed to AnsibleModule. If ``work`` raises a CloudError,
    the task fails with the error's message as ``msg`` and the error's code as ``reason``.
    """
    module = AnsibleModule(
        argument_spec={
            "api": {"type": "dict", "required": True},
            **options,
        },
        required_if=list(required_if),
        supports_check_mode=True,
    )
    try:
        result = work(module, TpuApi(ApiSettings.of(module.params["api"])))
    except CloudError as error:
        module.fail_json(msg=str(error), reason=error.reason)
    module.exit_json(**result)
