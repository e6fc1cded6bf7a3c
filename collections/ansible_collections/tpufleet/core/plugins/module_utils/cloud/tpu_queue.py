"""One queued resource from what is to what is wanted: read, compare, ask, wait, look again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from . import tpu_errors as errors
from .data_disks import have_disks
from .deletion import Found, delete_exactly
from .offers import explained
from .tpu_api import TpuApi
from .tpu_nodes import Node
from .tpu_requests import Request, WantedRequest, facts_of_request, parse_request
from .tpu_wanted import Different

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What happened, or would have: ``before`` and ``after`` are for the diff."""

    changed: bool
    msg: str
    request: Request | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def ensure_requested(
    api: TpuApi,
    wanted: WantedRequest,
    *,
    timeout: float,
    wait: bool = True,
    check: bool = False,
    replace_dead: bool = True,
    progress: Progress = lambda _text: None,
) -> Outcome:
    """Have the request in the queue, and with ``wait`` its TPUs there (ACTIVE).

    A dead request of the same name is deleted first, unless ``replace_dead`` is false; it has no
    living TPU. ``timeout`` in seconds. Raises TpuApiError; Different for a living request that is
    not as wanted, QuotaError and CapacityError for one that failed.
    """
    wanted.check()
    zone, name = wanted.tpu.zone, wanted.name
    deadline = api.deadline_in(timeout)
    request = _read(api, zone, name)
    before = facts_of_request(request) if request else {}
    if request and request.state not in ("DELETING", "SUSPENDING"):
        if not request.dead:
            differences = wanted.differences(request)
            if differences:
                raise Different(
                    f"queued resource {request.where} exists, but {'; '.join(differences)}: that "
                    "can't be changed; remove it (state: absent) and ask anew"
                )
            if wait and not check:
                request = _wait_active(api, request, deadline, progress)
            return Outcome(
                False,
                f"queued resource {request.where} is {request.state}",
                request,
                before,
                before,
            )
        if not replace_dead:
            raise Different(
                f"queued resource {request.where} is {request.state} and is never tried again: "
                "remove it (state: absent), or say replace_dead: true"
                + (f" ({request.error})" if request.error else "")
            )
    if check:
        msg = f"queued resource {wanted.where} would be asked for"
        return Outcome(True, msg, request, before, wanted.facts())
    if request:
        _remove(api, request, deadline, False, progress)
    have_disks(api, wanted.tpu, deadline=deadline, progress=progress)
    operation = _ask(api, wanted)
    api.wait(operation, f"create queued resource {wanted.where}", deadline)
    made = _read(api, zone, name)
    if made is None:
        raise errors.OperationFailed(
            f"can't create queued resource {wanted.where}: it was there and is gone"
        )
    if wait:
        made = _wait_active(api, made, deadline, progress)
    msg = f"queued resource {wanted.where} is asked for, and is {made.state}"
    return Outcome(True, msg, made, before, wanted.facts())


def ensure_not_requested(
    api: TpuApi,
    zone: str,
    name: str,
    *,
    timeout: float,
    force: bool = False,
    check: bool = False,
    agreed: Collection[str] | None = None,
    progress: Progress = lambda _text: None,
) -> Outcome:
    """Have the request gone; the one that is there now. ``force`` deletes its living TPUs too.

    ``agreed`` are those that may be deleted, by Request.key; None: any. Raises Different.
    """
    request = _read(api, zone, name)
    if request is None:
        return Outcome(False, f"queued resource {name} ({zone}) is not there", None, {}, {})
    if agreed is not None and request.key not in agreed:
        raise Different(
            f"queued resource {request.where} was made after the question whether to delete it: "
            "it stays; run this again if it is meant too"
        )
    if not check:
        _remove(api, request, api.deadline_in(timeout), force, progress)
    msg = f"queued resource {request.where} {'would be' if check else 'is'} deleted"
    return Outcome(True, msg, request, facts_of_request(request), {})


def request_of(api: TpuApi, node: Node) -> Request | None:
    """Return the queued resource that made this TPU and no other; None if there is none."""
    if not node.queued_resource or node.multislice:
        return None
    request = _read(api, node.zone, node.queued_resource.rsplit("/", 1)[-1])
    return request if request and request.nodes == (node.name,) else None


def _read(api: TpuApi, zone: str, name: str) -> Request | None:
    found = api.get_request(zone, name)
    return None if found is None else parse_request(found)


def _ask(api: TpuApi, wanted: WantedRequest) -> Mapping[str, Any]:
    try:
        return api.create_request(wanted.tpu.zone, wanted.name, wanted.body(api.settings.project))
    except (errors.AlreadyExists, errors.NoAnswer):
        # Another controller was quicker, or it is one's own: what is there tells. A TPU of the
        # name that belongs to no such request is an AlreadyExists too.
        request = _read(api, wanted.tpu.zone, wanted.name)
        if request is None or wanted.differences(request):
            raise
        return {}
    except (errors.InvalidRequest, errors.NotFound, errors.Forbidden) as refused:
        raise explained(api, refused, wanted.tpu) from None


def _wait_active(api: TpuApi, seen: Request, deadline: float, progress: Progress) -> Request:
    what = f"have queued resource {seen.where} ACTIVE"
    request: Request | None = seen
    tried = 0
    while True:
        if request is None or request.key != seen.key:
            raise errors.OperationFailed(f"can't {what}: it was there and is gone")
        if request.state == "ACTIVE":
            return request
        if request.dead:
            raise _failure(request, what)
        progress(request.state)
        try:
            api.pause(what, tried, deadline)
        except errors.DeadlineExceeded as late:
            raise errors.DeadlineExceeded(
                f"queued resource {request.where} is still {request.state}: {late}"
            ) from None
        tried += 1
        request = _read(api, seen.zone, seen.name)


def _failure(request: Request, what: str) -> errors.TpuApiError:
    said = request.error or f"it is {request.state}"
    if "quota" in said.lower():
        return errors.QuotaError(f"can't {what}: {said}")
    if "capacity" in said.lower():
        return errors.CapacityError(f"can't {what}: {said} (try another zone, or again later)")
    return errors.OperationFailed(f"can't {what}: {said}")


def _remove(api: TpuApi, seen: Request, deadline: float, force: bool, progress: Progress) -> None:
    what = f"delete queued resource {seen.where}"

    def look() -> Found | None:
        request = _read(api, seen.zone, seen.name)
        going = request is not None and request.state in ("DELETING", "SUSPENDING")
        return request and Found(request.created, request.state, going)

    def delete() -> Mapping[str, Any] | None:
        try:
            return api.delete_request(seen.zone, seen.name, force=force)
        except errors.InvalidRequest as refused:
            if force:
                raise
            raise errors.InvalidRequest(
                f"{refused}; force: true deletes its TPUs ({', '.join(seen.nodes)}) too"
            ) from None

    delete_exactly(
        what,
        seen.created,
        look=look,
        delete=delete,
        wait=lambda operation: api.wait(operation, what, deadline, lambda: progress("DELETING")),
        pause=lambda tried: api.pause(what, tried, deadline),
        progress=progress,
    )
