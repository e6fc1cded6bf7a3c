"""Hints in the error after the API refused to create a TPU: what the zones offer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import errors
from .closest_names import closest_names

if TYPE_CHECKING:
    from .node_spec import NodeSpec
    from .tpu_api import TpuApi

_FIX = "fix it in fleet.yml, then run: ansible-playbook playbooks/create.yml"


def explain_refusal(api: TpuApi, error: errors.CloudError, spec: NodeSpec) -> errors.CloudError:
    """Return ``error``, the refusal to create the TPU ``spec``, with hints for the user.

    If the zone does not exist, the hints list the zones with TPUs. If the zone does not offer the
    type or the runtime version, they list those that it offers.
    """
    hints = list(_offers(api, spec))
    if not (isinstance(error, errors.Forbidden) and error.is_about_project):
        hints.append(_FIX)
    return type(error)("; ".join([str(error), *hints]))


def _offers(api: TpuApi, spec: NodeSpec) -> Iterator[str]:
    zone = spec.zone
    try:
        types = api.list_accelerator_types(zone)
        versions = api.list_runtime_versions(zone)
    except (errors.NotFound, errors.Forbidden, errors.InvalidRequest):
        try:
            zones = api.list_zones()
        except errors.CloudError:
            return
        if zone not in zones:
            yield f"the zones with TPUs are {closest_names(zone, zones)}"
        return
    except errors.CloudError:
        return
    if spec.kind not in types:
        yield f"{zone} has the accelerator types {closest_names(spec.kind, types)}"
    if spec.runtime_version not in versions:
        yield f"{zone} has the runtime versions {closest_names(spec.runtime_version, versions)}"
