"""Changes that bring one queued resource to its desired state: create, wait, delete."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from . import errors
from .changes import ChangeOptions, Outcome, Progress
from .deletion import CurrentResource, check_confirmed, delete_exactly
from .disks import attachable, ensure_disks
from .nodes import Node, parse_node
from .queued_resource import QueuedResource, QueuedResourceSpec, parse_queued_resource
from .refusals import explain_refusal

if TYPE_CHECKING:
    from .tpu_api import TpuApi


def ensure_requested(
    api: TpuApi,
    spec: QueuedResourceSpec,
    options: ChangeOptions,
    *,
    wait: bool = True,
) -> Outcome:
    """Create a queued resource; with ``wait``, wait until its TPUs exist (ACTIVE).

    A queued resource of the same name that is FAILED, SUSPENDED or SUSPENDING is deleted first,
    if ``options.replaces_lost``; otherwise it is an error.

    Raises CloudError; Different for an existing queued resource that differs from the spec,
    QuotaError or CapacityError if the queued resource failed because of quota or capacity.
    """
    spec.check()
    zone, name = spec.tpu.zone, spec.name
    deadline = api.polling.deadline_in(options.timeout)
    progress = partial(options.report, name)
    request = _read(api, zone, name)
    before = request.compared_fields() if request else {}
    if request and not request.is_being_deleted:
        options.check_owner(request)
    if request and not request.is_dead and not request.is_ending:
        differences = spec.differences(request)
        if differences:
            delete = "state: absent"
            # Suggest delete.yml only if the queued resource has one TPU, of the same name:
            # delete.yml accepts the name of a TPU, not that of a queued resource.
            if spec.nodes == (name,):
                delete += (
                    f", or: ansible-playbook playbooks/delete.yml -e tpu={name} -e zone={zone}"
                )
            raise errors.Different(
                f"queued resource {request.where} exists, but {'; '.join(differences)}, which "
                f"can't be changed. Delete it ({delete}), and create it again"
            )
        if wait and not options.check:
            request = _wait_active(api, request, deadline, progress)
        msg = f"queued resource {request.where} is {request.state}"
        return Outcome(False, msg, before, before, request=request)
    if request and not request.is_being_deleted and not options.replaces_lost:
        raise errors.Different(
            f"queued resource {request.where} is {request.state}, and Google will not retry it"
            + (f" ({request.error})" if request.error else "")
            + ". Delete it (state: absent), or set replace_dead: true"
        )
    if options.check:
        msg = f"queued resource {spec.where} would be created"
        return Outcome(True, msg, before, spec.compared_fields(), request=request)
    if request:
        _delete(api, request, deadline, False, progress)
    ensure_disks(api.compute, spec.tpu, deadline=deadline, progress=progress)
    spec = replace(spec, tpu=attachable(api.compute, spec.tpu))
    operation = _create(api, spec, options)
    api.wait(operation, f"create queued resource {spec.where}", deadline)
    created = _read(api, zone, name)
    if created is None:
        raise errors.OperationFailed(
            f"queued resource {spec.where} was created, but no longer exists. Run the playbook "
            "again"
        )
    if wait:
        created = _wait_active(api, created, deadline, progress)
    msg = f"queued resource {spec.where} is created and {created.state}"
    return Outcome(True, msg, before, spec.compared_fields(), request=created)


def ensure_not_requested(
    api: TpuApi,
    zone: str,
    name: str,
    options: ChangeOptions,
    *,
    force: bool = False,
) -> Outcome:
    """Delete the queued resource that is called ``name`` now; with ``force``, also its TPUs.

    Raises CloudError; Different if the queued resource is not one of ``options.confirmed``.
    """
    request = _read(api, zone, name)
    if request is None:
        return Outcome(False, f"queued resource {name} ({zone}) does not exist", {}, {})
    check_confirmed(f"queued resource {request.where}", request.key, options.confirmed)
    if options.check and not force and _has_tpus(api, request):
        raise errors.InvalidRequest(
            f"queued resource {request.where} has TPUs, so it can't be deleted"
        )
    if not options.check:
        deadline = api.polling.deadline_in(options.timeout)
        _delete(api, request, deadline, force, partial(options.report, name))
    msg = f"queued resource {request.where} {'would be' if options.check else 'is'} deleted"
    return Outcome(True, msg, request.compared_fields(), {}, request=request)


def wait_for_suspension(api: TpuApi, lost: Node, options: ChangeOptions) -> None:
    """Wait until the queued resource of a preempted TPU is SUSPENDED.

    Returns at once if the queued resource or the TPU no longer exists, or if the TPU was recreated.
    ``lost`` is the preempted TPU. Raises CloudError.
    """
    deadline = api.polling.deadline_in(options.timeout)
    action = f"wait for queued resource {lost.queued_resource} ({lost.zone}) to be SUSPENDED"
    for pauses in itertools.count():
        request = _read(api, lost.zone, lost.queued_resource)
        if request is None or request.is_dead or request.is_ending:
            return
        data = api.get_node(lost.zone, lost.name)
        if data is None or (node := parse_node(data)).key != lost.key:
            return
        options.report(lost.name, node.state)
        api.polling.pause(f"{action} (it is still {request.state})", pauses, deadline)


def queued_resource_of(api: TpuApi, node: Node) -> QueuedResource | None:
    """Return the queued resource that created this TPU and no other TPU; None if there is none."""
    if not node.queued_resource or node.multislice:
        return None
    request = _read(api, node.zone, node.queued_resource)
    return request if request and request.nodes == (node.name,) else None


def list_zone(api: TpuApi, zone: str) -> tuple[list[Node], list[QueuedResource]]:
    """List the TPUs and the queued resources of a zone, all of which use up quota."""
    return (
        [parse_node(entry) for entry in api.list_nodes((zone,)).entries],
        [parse_queued_resource(entry) for entry in api.list_queued_resources((zone,))],
    )


def _has_tpus(api: TpuApi, request: QueuedResource) -> bool:
    """Return whether Google refuses to delete a queued resource because its TPUs exist."""
    nodes = (api.get_node(request.zone, name) for name in request.nodes)
    return not request.is_dead and any(
        parse_node(node).queued_resource == request.name for node in nodes if node
    )


def _read(api: TpuApi, zone: str, name: str) -> QueuedResource | None:
    data = api.get_queued_resource(zone, name)
    return None if data is None else parse_queued_resource(data)


def _create(api: TpuApi, spec: QueuedResourceSpec, options: ChangeOptions) -> Mapping[str, Any]:
    try:
        body = spec.body(api.settings.project)
        return api.create_queued_resource(spec.tpu.zone, spec.name, body)
    except (errors.AlreadyExists, errors.NoAnswer):
        # Another controller, or an earlier try whose response was lost, may have created the queued
        # resource. AlreadyExists may also mean that only a TPU of this name exists.
        request = _read(api, spec.tpu.zone, spec.name)
        if request is None or spec.differences(request):
            raise
        options.check_owner(request)
        return {}
    except (errors.InvalidRequest, errors.NotFound, errors.Forbidden) as error:
        raise explain_refusal(api, error, spec.tpu) from None


def _wait_active(
    api: TpuApi, first: QueuedResource, deadline: float, progress: Progress
) -> QueuedResource:
    action = f"wait for queued resource {first.where} to be ACTIVE"
    request: QueuedResource | None = first
    for pauses in itertools.count():
        if request is None or request.key != first.key:
            raise errors.OperationFailed(
                f"can't {action}: it was deleted meanwhile. Run the playbook again to create it"
            )
        if request.state == "ACTIVE":
            return request
        if request.is_dead:
            raise _failure(request, action)
        progress(request.state)
        api.polling.pause(f"{action} (it is still {request.state})", pauses, deadline)
        request = _read(api, first.zone, first.name)


def _failure(request: QueuedResource, action: str) -> errors.CloudError:
    message = request.error or f"it is {request.state}"
    if "quota" in message.lower():
        return errors.QuotaError(f"can't {action}: {message}")
    if "capacity" in message.lower():
        return errors.CapacityError(f"can't {action}: {message} (try another zone, or again later)")
    return errors.OperationFailed(f"can't {action}: {message}")


def _delete(
    api: TpuApi, request: QueuedResource, deadline: float, force: bool, progress: Progress
) -> None:
    action = f"delete queued resource {request.where}"

    def delete() -> Mapping[str, Any] | None:
        try:
            return api.delete_queued_resource(request.zone, request.name, force=force)
        except errors.InvalidRequest:
            if request.state != "ACTIVE" or _has_tpus(api, request):
                raise
            # Google can still refuse the deletion for some time after the TPUs are gone.
            return None

    def read() -> CurrentResource | None:
        current = _read(api, request.zone, request.name)
        return current and CurrentResource(current.created, current.state, current.is_ending)

    delete_exactly(
        api,
        action,
        request.created,
        deadline,
        read=read,
        delete=delete,
        progress=progress,
    )
