"""How every module that asks Google's APIs begins and ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from .quota_holders import Explainer, Quota
from .tpu_api import ApiSettings, TpuApi
from .tpu_errors import QuotaError, TpuApiError
from .tpu_shapes import type_of_config
from .wanted_options import API_OPTIONS

#: What a module about one named thing of a zone is told besides its own options.
NAMED_OPTIONS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "zone": {"type": "str", "required": True},
    "timeout": {"type": "int", "default": 1800},
}
#: Of one that waits: the file to which it writes what it waits for; the action plugin gives it.
PROGRESS_OPTION: dict[str, Any] = {"progress_file": {"type": "path"}}
#: How long a state may go on before it is written again, seconds.
SAY_AGAIN_S = 10.0
#: Of one that makes TPUs.
NEEDED_TO_MAKE = (("state", "present", ["runtime_version"]),)


def run_cloud_module(
    work: Callable[[AnsibleModule, TpuApi], dict[str, Any]],
    options: Mapping[str, Any],
    *,
    required_if: Sequence[tuple[str, object, Sequence[str]]] = (),
) -> None:
    """Read the options, work, and end with a result, or with one line and its ``reason``."""
    module = AnsibleModule(
        argument_spec={
            "api": {"type": "dict", "required": True, "options": API_OPTIONS},
            **options,
        },
        required_if=list(required_if),
        supports_check_mode=True,
    )
    try:
        api = TpuApi(ApiSettings.of(module.params["api"]))
        try:
            result = work(module, api)
        except QuotaError as refused:
            quota = _quota(module.params)
            raise (Explainer(api).explained(refused, quota) if quota else refused) from None
    except TpuApiError as error:
        module.fail_json(msg=str(error), reason=error.reason)
    module.exit_json(**result)


class Progress:
    """Writes what a thing is at to a file: each new state, and every ten seconds that it is so."""

    def __init__(self, path: str | None, name: str) -> None:
        """Write nothing where there is no path."""
        self._path, self._name = path, name
        self._began = time.monotonic()
        self._said, self._when = "", self._began

    def __call__(self, state: str) -> None:
        """Write a line, unless the same was written a moment ago."""
        now = time.monotonic()
        if not self._path or (state == self._said and now - self._when < SAY_AGAIN_S):
            return
        self._said, self._when = state, now
        with Path(self._path).open("a", encoding="utf-8") as file:
            file.write(f"{self._name}: {state}, {now - self._began:.0f} s\n")


def progress_of(given: Mapping[str, Any]) -> Progress:
    """Give the progress of a module that has PROGRESS_OPTION and is about one named thing."""
    return Progress(given["progress_file"], given["name"])


def result_of(done: Any) -> dict[str, Any]:
    """Give what every outcome has: ``changed``, ``msg``, ``diff``."""
    return {
        "changed": done.changed,
        "msg": done.msg,
        "diff": {"before": done.before, "after": done.after},
    }


def _quota(given: Mapping[str, Any]) -> Quota | None:
    """Give the quota of the TPUs that the module is told to make; None if it makes none."""
    if "accelerator_type" not in given:
        return None
    config = given["accelerator_config"] or {}
    kind = given["accelerator_type"] or type_of_config(
        config.get("type", ""), config.get("topology", "")
    )
    spot = given.get("spot") or given.get("preemptible") or given.get("tier") == "spot"
    return Quota.of(kind, bool(spot), given["zone"])
