"""One TPU from what is to what is wanted: read, compare, change what differs, wait, look again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from . import tpu_errors as errors
from .data_disks import have_disks
from .deletion import Found, delete_exactly
from .offers import explained
from .tpu_api import TpuApi
from .tpu_nodes import DEAD_STATES, Node, parse_node
from .tpu_wanted import Different, Outcome, Wanted, compare, different, facts_of, outcome_of

Progress = Callable[[str], None]
#: Raises TpuApiError for a TPU that must be left as it is.
OwnerCheck = Callable[[Node], None]


def ensure_present(
    api: TpuApi,
    wanted: Wanted,
    *,
    timeout: float,
    check: bool = False,
    recreate: bool = False,
    replace_dead: bool = False,
    agreed: Collection[str] | None = None,
    progress: Progress = lambda _text: None,
    check_owner: OwnerCheck = lambda _node: None,
) -> Outcome:
    """Make the TPU be there and READY, as wanted.

    ``recreate`` deletes one that differs in what can't be changed, ``replace_dead`` one that was
    preempted. ``agreed`` are the living TPUs that may be deleted, by Node.key; None: any.
    ``timeout`` in seconds for all of it. Raises TpuApiError; Different without ``recreate``.
    Nothing is changed or deleted before ``check_owner`` has seen it.
    """
    wanted.check()
    deadline = api.deadline_in(timeout)
    node = _read(api, wanted.zone, wanted.name)
    if node is None or node.state == "DELETING":
        return _make(api, wanted, node, deadline, check, progress, check_owner)
    check_owner(node)
    if node.state in DEAD_STATES:
        if not (replace_dead or recreate):
            raise Different(
                f"TPU {node.where} is {node.state} and can't start again. Delete it: "
                f"ansible-playbook playbooks/delete.yml -e tpu={node.name} -e zone={node.zone}, "
                "or set replace_dead: true"
            )
        return _make(api, wanted, node, deadline, check, progress, check_owner)
    differences = compare(wanted, node)
    if differences.immutable:
        if not recreate:
            raise different(node, differences)
        if agreed is not None and node.key not in agreed:
            raise not_agreed(node)
        return _make(api, wanted, node, deadline, check, progress, check_owner)
    if node.state in ("STOPPED", "STOPPING"):
        raise Different(
            f"TPU {node.where} is {node.state}: start it with tpufleet.core.tpu_node and "
            f"state: started, or `gcloud compute tpus tpu-vm start {node.name} --zone={node.zone}`"
        )
    if check:
        return outcome_of(wanted, node, bool(differences.mask))
    node = _wait_ready(api, wanted, deadline, progress)
    if differences.mask:
        what = f"change TPU {node.where}"
        api.wait(
            api.patch_node(node.zone, node.name, differences.patch, differences.mask),
            what,
            deadline,
        )
        changed = _wait_ready(api, wanted, deadline, progress)
        return outcome_of(wanted, node, True, changed)
    return outcome_of(wanted, node, False)


def ensure_absent(
    api: TpuApi,
    zone: str,
    name: str,
    *,
    timeout: float,
    check: bool = False,
    agreed: Collection[str] | None = None,
    progress: Progress = lambda _text: None,
) -> Outcome:
    """Make the TPU be gone; the one that is there now, not one of its name that comes later.

    ``agreed``: as for ensure_present; one that is not among them stays, and Different is raised.
    """
    node = _read(api, zone, name)
    if node is None:
        return Outcome(False, f"TPU {name} ({zone}) is not there", None, {}, {})
    if agreed is not None and node.key not in agreed:
        raise not_agreed(node)
    if not check:
        _remove(api, node, api.deadline_in(timeout), progress)
    msg = f"TPU {node.where} {'would be' if check else 'is'} deleted"
    return Outcome(True, msg, node, facts_of(node), {})


def not_agreed(node: Node) -> Different:
    """Make the error for a TPU that took the place of the one that was asked about."""
    return Different(
        f"TPU {node.where} was made after the question whether to delete it: it stays; run this "
        "again if it is meant too"
    )


def ensure_power(
    api: TpuApi,
    zone: str,
    name: str,
    *,
    started: bool,
    timeout: float,
    check: bool = False,
    progress: Progress = lambda _text: None,
) -> Outcome:
    """Have a TPU that exists run (READY), or stand still (STOPPED) with its disks kept."""
    goal, verb = ("READY", "start") if started else ("STOPPED", "stop")
    what = f"{verb} TPU {name} ({zone})"
    deadline = api.deadline_in(timeout)
    node = _read(api, zone, name)
    if node is None:
        raise errors.NotFound(f"can't {what}: there is none; make it with state: present")
    before = {"name": name, "zone": zone, "state": node.state}
    after = before | {"state": goal}
    if node.state == goal or check:
        return Outcome(node.state != goal, f"{what}: it is {node.state}", node, before, after)
    tried, asked = 0, False
    while node.state != goal:
        if node.state in DEAD_STATES:
            raise Different(f"can't {what}: it is {node.state}, and can only be made anew")
        if node.state == ("STOPPED" if started else "READY"):
            try:
                operation = api.power_node(zone, name, verb)
                asked = True
                api.wait(operation, what, deadline, lambda: progress(verb.upper()))
            except errors.NoAnswer:
                asked = True  # it may have worked: the next look tells
        progress(node.state)
        node = _read(api, zone, name)
        if node is None:
            raise errors.OperationFailed(f"can't {what}: it is gone; somebody deleted it")
        if node.state != goal:
            api.pause(what, tried, deadline)
            tried += 1
    done = "is started" if started else "is stopped"
    return Outcome(asked, f"TPU {node.where} {done}", node, before, after)


def _read(api: TpuApi, zone: str, name: str) -> Node | None:
    found = api.get_node(zone, name)
    return None if found is None else parse_node(found)


def _make(
    api: TpuApi,
    wanted: Wanted,
    instead_of: Node | None,
    deadline: float,
    check: bool,
    progress: Progress,
    check_owner: OwnerCheck,
) -> Outcome:
    alive = instead_of and instead_of.state not in (*DEAD_STATES, "DELETING")
    node = None
    if not check:
        if instead_of:
            _remove(api, instead_of, deadline, progress)
        node = _create(api, wanted, deadline, progress, check_owner)
    outcome = outcome_of(wanted, instead_of, True, node, created=True)
    return replace(outcome, replaced=instead_of if alive else None)


def _create(
    api: TpuApi, wanted: Wanted, deadline: float, progress: Progress, check_owner: OwnerCheck
) -> Node:
    what = f"create TPU {wanted.where}"
    have_disks(api, wanted, deadline=deadline, progress=progress)
    try:
        operation = api.create_node(wanted.zone, wanted.name, wanted.body(api.settings.project))
    except (errors.AlreadyExists, errors.NoAnswer):
        # An answer was lost on the way, or another controller was quicker: what is there tells.
        if api.get_node(wanted.zone, wanted.name) is None:
            raise
        node = _wait_ready(api, wanted, deadline, progress)
        check_owner(node)
        differences = compare(wanted, node)
        if differences.immutable:
            raise different(node, differences) from None
        return node
    except (errors.InvalidRequest, errors.NotFound, errors.Forbidden) as refused:
        raise explained(api, refused, wanted) from None
    progress("CREATING")
    api.wait(operation, what, deadline, lambda: progress("CREATING"))
    return _wait_ready(api, wanted, deadline, progress)


def _wait_ready(api: TpuApi, wanted: Wanted, deadline: float, progress: Progress) -> Node:
    what = f"have TPU {wanted.where} READY"
    tried = 0
    while True:
        node = _read(api, wanted.zone, wanted.name)
        if node is None:
            raise api.creation_error(wanted.zone, wanted.name) or errors.OperationFailed(
                f"can't {what}: it was there and is gone; somebody deleted it, or it failed"
            )
        if node.state == "READY" and node.endpoints:
            return node
        if node.state in DEAD_STATES:
            raise errors.CapacityError(f"can't {what}: it is {node.state} already; run this again")
        progress(node.state)
        try:
            api.pause(what, tried, deadline)
        except errors.DeadlineExceeded as late:
            raise errors.DeadlineExceeded(
                f"TPU {wanted.where} is still {node.state}: {late}"
            ) from None
        tried += 1


def _remove(api: TpuApi, seen: Node, deadline: float, progress: Progress) -> None:
    what = f"delete TPU {seen.where}"

    def look() -> Found | None:
        node = _read(api, seen.zone, seen.name)
        return node and Found(node.id, node.state, node.state == "DELETING")

    delete_exactly(
        what,
        seen.id,
        look=look,
        delete=lambda: api.delete_node(seen.zone, seen.name),
        wait=lambda operation: api.wait(operation, what, deadline, lambda: progress("DELETING")),
        pause=lambda tried: api.pause(what, tried, deadline),
        progress=progress,
    )
