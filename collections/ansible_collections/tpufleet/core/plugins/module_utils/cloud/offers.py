"""What a zone has to offer, for who asked for something else, behind the API's own reason."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from . import tpu_errors as errors
from .tpu_api import TpuApi
from .tpu_wanted import Wanted

#: So many names are said; the nearest to what was asked for.
_AT_MOST = 8
_AGAIN = "mend it in fleet.yml, then ansible-playbook playbooks/create.yml"


def explained(api: TpuApi, refused: errors.TpuApiError, wanted: Wanted) -> errors.TpuApiError:
    """Give the refusal of a creation with what is allowed instead, as far as the API tells."""
    said = str(refused)
    # An API that names what it has needs nobody to say it again.
    more = [words for words, names in _allowed(api, wanted) if not all(n in said for n in names)]
    if "`gcloud" not in said:
        more.append(_AGAIN)
    return type(refused)("; ".join([said, *more]))


def _allowed(api: TpuApi, wanted: Wanted) -> Iterator[tuple[str, Sequence[str]]]:
    zone = wanted.zone
    try:
        types = api.list_offers(zone, "acceleratorTypes", "type")
        versions = api.list_offers(zone, "runtimeVersions", "version")
    except (errors.NotFound, errors.Forbidden, errors.InvalidRequest):
        try:
            zones = api.list_zones()
        except errors.TpuApiError:
            return
        if zone not in zones:
            yield f"the zones with TPUs are {_some(zones, zone)}", zones
        return
    except errors.TpuApiError:
        return
    if wanted.kind not in types:
        yield f"{zone} has the types {_some(types, wanted.kind)}", types
    if wanted.runtime_version not in versions:
        some = _some(versions, wanted.runtime_version)
        yield f"{zone} has the runtime versions {some}", versions


def _some(names: Sequence[str], asked: str) -> str:
    near = difflib.get_close_matches(asked, names, _AT_MOST, 0.3) or list(names)[:_AT_MOST]
    others = len(set(names)) - len(near)
    return (", ".join(near) or "none") + (f" and {others} more" if others > 0 else "")
