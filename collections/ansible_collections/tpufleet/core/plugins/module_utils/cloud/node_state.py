"""Changes that bring one TPU to its desired state: create, change, delete, start, stop."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from . import errors
from .changes import ChangeOptions, Outcome, Progress
from .deletion import CurrentResource, check_confirmed, delete_exactly
from .disks import attachable, ensure_disks
from .node_diff import Differences, compare, facts_of, outcome_of
from .nodes import Node, parse_node
from .refusals import explain_refusal

if TYPE_CHECKING:
    from .node_spec import NodeSpec
    from .tpu_api import TpuApi


def ensure_present(api: TpuApi, spec: NodeSpec, options: ChangeOptions) -> Outcome:
    """Create or change a TPU, and wait until it is READY and matches its spec.

    Raises CloudError; Different if an immutable field differs and ``options.recreate`` is false.
    """
    spec.check()
    deadline = api.polling.deadline_in(options.timeout)
    node = read_node(api, spec.zone, spec.name)

    def create() -> Outcome:
        created = None
        if not options.check:
            if node:
                _delete(api, node, deadline, options)
            created = _create(api, spec, deadline, options)
        was_alive = node is not None and not node.is_lost and not node.is_being_deleted
        outcome = outcome_of(spec, node, True, created, created=True)
        return replace(outcome, replaced=node if was_alive else None)

    if node is None or node.is_being_deleted:
        return create()
    options.check_owner(node)
    if node.is_lost:
        if not options.replaces_lost:
            raise errors.Different(
                f"TPU {node.where} is {node.state} and can't start again. Delete it: "
                f"ansible-playbook playbooks/delete.yml -e tpu={node.name} -e zone={node.zone}, "
                "or set replace_dead: true"
            )
        return create()
    attachable_spec = attachable(api.compute, spec, node)
    differences = compare(attachable_spec, node)
    if differences.immutable:
        if not options.recreate:
            raise _different(spec, node, differences)
        check_confirmed(f"TPU {node.where}", node.key, options.confirmed)
        return create()
    if node.state in ("STOPPED", "STOPPING"):
        raise errors.Different(
            f"TPU {node.where} is {node.state}. Start it: "
            f"ansible-playbook playbooks/start_tpu.yml -e tpu={node.name} -e zone={node.zone}"
        )
    if options.check:
        return outcome_of(spec, node, bool(differences.mask))
    known_id = node.id

    def wait_ready() -> Node:
        ready = _wait_ready(api, spec, deadline, partial(options.report, spec.name))
        if known_id not in ("", ready.id):
            # The TPU whose owner and differences were checked above was deleted meanwhile, and
            # another TPU was created under its name.
            raise errors.Different(
                f"can't change TPU {spec.where}: another TPU has taken its name. Run the playbook "
                "again"
            )
        return ready

    before = wait_ready()
    if not differences.mask:
        return outcome_of(spec, before, False)
    pauses = 0
    while differences.mask:
        try:
            api.patch_node(spec.zone, spec.name, differences.patch, differences.mask, deadline)
            break
        except errors.AlreadyExists:
            # Google refuses a change while another one is in progress. That one may add ssh keys,
            # so compare again.
            api.polling.pause(f"change TPU {spec.where}", pauses, deadline)
            pauses += 1
            differences = compare(attachable_spec, wait_ready())
    return outcome_of(spec, before, True, wait_ready())


def ensure_absent(api: TpuApi, zone: str, name: str, options: ChangeOptions) -> Outcome:
    """Delete the TPU that is called ``name`` now, but no later TPU of the same name.

    Raises CloudError; Different if the TPU is not one of ``options.confirmed``.
    """
    node = read_node(api, zone, name)
    if node is None:
        return Outcome(False, f"TPU {name} ({zone}) does not exist", {}, {})
    check_confirmed(f"TPU {node.where}", node.key, options.confirmed)
    if not options.check:
        _delete(api, node, api.polling.deadline_in(options.timeout), options)
    msg = f"TPU {node.where} {'would be' if options.check else 'is'} deleted"
    return Outcome(True, msg, facts_of(node), {}, node)


def ensure_power(
    api: TpuApi,
    zone: str,
    name: str,
    *,
    started: bool,
    timeout: float,
    node_id: str = "",
    check: bool = False,
) -> Outcome:
    """Start an existing TPU and wait until it is READY, or stop it and wait until it is STOPPED.

    ``started`` is the desired state, ``timeout`` is in seconds. With ``check``, nothing is changed.
    Raises CloudError; Different if ``node_id`` is not empty and the TPU has another id.
    """
    goal, verb = ("READY", "start") if started else ("STOPPED", "stop")
    action = f"{verb} TPU {name} ({zone})"
    deadline = api.polling.deadline_in(timeout)

    def read() -> Node | None:
        node = read_node(api, zone, name)
        if node and node_id not in ("", node.id):
            raise errors.Different(
                f"can't {action}: it was recreated meanwhile. Run the playbook again"
            )
        if node and node.is_lost:
            raise errors.Different(
                f"can't {action}: it is {node.state} and must be recreated: "
                f"ansible-playbook playbooks/create.yml -e tpu={name}"
            )
        return node

    node = read()
    if node is None:
        raise errors.NotFound(f"can't {action}: it does not exist. Create it with state: present")
    before = {"name": name, "zone": zone, "state": node.state}
    after = before | {"state": goal}
    change = "started" if started else "stopped"
    if node.state == goal or check:
        # A TPU that is starting or stopping already needs no request.
        changes = (node.state in ("STOPPED", "STOPPING")) == started
        state = f"would be {change}" if changes else f"is {node.state} already"
        return Outcome(changes, f"TPU {node.where} {state}", before, after, node)
    pauses, requested = 0, False
    while node.state != goal:
        if node.state == ("STOPPED" if started else "READY"):
            requested = True
            # Ignore a lost response: the next read shows whether the request has taken effect.
            with suppress(errors.NoAnswer):
                api.power_node(zone, name, verb, deadline)
        node = read()
        if node is None:
            raise errors.OperationFailed(
                f"can't {action}: it was deleted meanwhile. To create it again, run: "
                f"ansible-playbook playbooks/create.yml -e tpu={name}"
            )
        if node.state != goal:
            api.polling.pause(action, pauses, deadline)
            pauses += 1
    return Outcome(requested, f"TPU {node.where} is {change}", before, after, node)


def read_node(api: TpuApi, zone: str, name: str) -> Node | None:
    """Return a TPU; None if it does not exist."""
    data = api.get_node(zone, name)
    return None if data is None else parse_node(data)


def _create(api: TpuApi, spec: NodeSpec, deadline: float, options: ChangeOptions) -> Node:
    action, progress = f"create TPU {spec.where}", partial(options.report, spec.name)
    ensure_disks(api.compute, spec, deadline=deadline, progress=progress)
    spec = attachable(api.compute, spec)
    try:
        operation = api.create_node(spec.zone, spec.name, spec.body(api.settings.project))
    except (errors.AlreadyExists, errors.NoAnswer):
        # An earlier try, whose response was lost, or another controller may have created the TPU.
        node = read_node(api, spec.zone, spec.name)
        if node is None:
            raise
        options.check_owner(node)
        differences = compare(spec, node)
        if differences.immutable:
            raise _different(spec, node, differences) from None
        return _wait_ready(api, spec, deadline, progress)
    except (errors.InvalidRequest, errors.NotFound, errors.Forbidden) as error:
        raise explain_refusal(api, error, spec) from None
    progress("CREATING")
    try:
        api.wait(operation, action, deadline, lambda: progress("CREATING"))
    except errors.OperationFailed:
        # The creation of a TPU also fails if the TPU is preempted before it is READY.
        node = read_node(api, spec.zone, spec.name)
        if node is None or not node.is_lost:
            raise
    return _wait_ready(api, spec, deadline, progress)


def _wait_ready(api: TpuApi, spec: NodeSpec, deadline: float, progress: Progress) -> Node:
    action = f"wait for TPU {spec.where} to be READY"
    pauses = 0
    while True:
        node = read_node(api, spec.zone, spec.name)
        if node is None:
            raise api.creation_error(spec.zone, spec.name) or errors.OperationFailed(
                f"can't {action}: it no longer exists. Somebody deleted it, or its creation "
                "failed. Run the playbook again to create it"
            )
        if node.state == "READY" and node.endpoints:
            return node
        if node.is_lost:
            raise errors.CapacityError(
                f"can't {action}: the new TPU is {node.state} already. Run the playbook again"
            )
        progress(node.state)
        api.polling.pause(f"{action} (it is still {node.state})", pauses, deadline)
        pauses += 1


def _delete(api: TpuApi, node: Node, deadline: float, options: ChangeOptions) -> None:
    action = f"delete TPU {node.where}"

    def read() -> CurrentResource | None:
        current = read_node(api, node.zone, node.name)
        return current and CurrentResource(current.id, current.state, current.is_being_deleted)

    delete_exactly(
        api,
        action,
        node.id,
        deadline,
        read=read,
        delete=lambda: api.delete_node(node.zone, node.name),
        progress=partial(options.report, node.name),
    )


def _different(spec: NodeSpec, node: Node, differences: Differences) -> errors.Different:
    text = f"TPU {node.where} exists, but {'; '.join(differences.immutable)}"
    attached = [str(disk) for disk in node.data_disks]
    unattached = [
        disk for disk in spec.data_disks or () if not disk.writable and str(disk) not in attached
    ]
    if unattached and len(differences.immutable) == 1:
        # The disk was created but is not filled yet, so it is not attached.
        return errors.Different(
            f"{text}. Fill the disk, which then is attached read-only: ansible-playbook "
            f"playbooks/fill_disk.yml -e disk={unattached[0].name} -e source=DIRECTORY"
        )
    return errors.Different(
        f"{text}, which can't be changed. Recreate it: ansible-playbook playbooks/create.yml "
        f"-e tpu={node.name} -e recreate=true (in a task: recreate: true)"
    )
