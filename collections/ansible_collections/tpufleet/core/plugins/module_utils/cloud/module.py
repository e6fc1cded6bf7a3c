"""What all modules that call Google's APIs share: options and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from .errors import CloudError
from .session import ApiSettings
from .tpu_api import TpuApi

#: Options of a module about one named resource of a zone.
NAMED_OPTIONS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "zone": {"type": "str", "required": True},
    "timeout": {"type": "int", "default": 1800},
}
#: What a module needs to create TPUs.
REQUIRED_TO_CREATE = (("state", "present", ["runtime_version"]),)


def run_cloud_module(
    work: Callable[[AnsibleModule, TpuApi], dict[str, Any]],
    options: Mapping[str, Any],
    *,
    required_if: Sequence[tuple[str, object, Sequence[str]]] = (),
) -> None:
    """Parse the options, work, and exit with the result, or with a one-line error and a reason."""
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
