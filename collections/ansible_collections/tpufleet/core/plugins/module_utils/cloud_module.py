"""How every module that asks the Cloud TPU API about one named thing begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from .quota_holders import Explainer, Quota
from .tpu_api import ApiSettings, TpuApi
from .tpu_errors import QuotaError, TpuApiError
from .tpu_shapes import type_of_config
from .wanted_options import API_OPTIONS

#: What each of these modules is told besides its own options.
_SHARED: dict[str, Any] = {
    "api": {"type": "dict", "required": True, "options": API_OPTIONS},
    "name": {"type": "str", "required": True},
    "zone": {"type": "str", "required": True},
    "timeout": {"type": "int", "default": 1800},
}


def run_cloud_module(
    work: Callable[[AnsibleModule, TpuApi], dict[str, Any]], options: Mapping[str, Any]
) -> None:
    """Read the options, work, and end with a result, or with one line and its ``reason``."""
    module = AnsibleModule(
        argument_spec={**_SHARED, **options},
        required_if=[("state", "present", ["runtime_version"])],
        supports_check_mode=True,
    )
    try:
        api = TpuApi(ApiSettings.of(module.params["api"]))
        try:
            result = work(module, api)
        except QuotaError as refused:
            raise Explainer(api).explained(refused, _quota(module.params)) from None
    except TpuApiError as error:
        module.fail_json(msg=str(error), reason=error.reason)
    module.exit_json(**result)


def result_of(done: Any) -> dict[str, Any]:
    """Give what every outcome has: ``changed``, ``msg``, ``diff``."""
    return {
        "changed": done.changed,
        "msg": done.msg,
        "diff": {"before": done.before, "after": done.after},
    }


def _quota(given: Mapping[str, Any]) -> Quota:
    config = given["accelerator_config"] or {}
    kind = given["accelerator_type"] or type_of_config(
        config.get("type", ""), config.get("topology", "")
    )
    spot = given.get("spot") or given.get("preemptible") or given.get("tier") == "spot"
    return Quota.of(kind, bool(spot), given["zone"])
