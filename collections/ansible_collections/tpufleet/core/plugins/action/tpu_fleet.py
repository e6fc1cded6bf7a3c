"""The controller's side of tpufleet.core.tpu_fleet: asks the API, and says how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.cloud.data_disks import made_disks
from ..module_utils.cloud.tpu_api import ApiSettings, TpuApi
from ..module_utils.cloud.tpu_errors import NotConfigured, TpuApiError
from ..module_utils.cloud.tpu_nodes import DEAD_STATES, Node, parse_node
from ..module_utils.cloud.tpu_requests import parse_request
from ..module_utils.cloud.tpu_wanted import KEYS_ENTRY, OS_LOGIN_ENTRY, Different, Wanted
from ..plugin_utils.fleet import tpu_fleet, tpu_queued
from ..plugin_utils.fleet.fleet import FleetTpu, choose, expand, name_and_zone
from ..plugin_utils.fleet.ownership import (
    DEFAULT_FLEET_NAME,
    LABEL,
    NodeIdentity,
    adoption_blocker,
    deletion_blocker,
    is_ours,
    parse_fleet_name,
)

#: How long a state may go on before it is said again, seconds.
SAY_AGAIN = 10.0
_SPEC: dict[str, Any] = {
    "api": {"type": "dict", "required": True},
    "fleet": {"type": "list", "elements": "raw", "required": True},
    "only": {"type": "str"},
    "zone": {"type": "str", "default": ""},
    "node_id": {"type": "str", "default": ""},
    "fleet_name": {"type": "str", "default": DEFAULT_FLEET_NAME},
    "adopt": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "ssh_user": {"type": "str", "default": ""},
    "ssh_public_key_file": {"type": "path", "default": ""},
    "os_login": {"type": "bool", "default": False},
    "known_hosts_file": {"type": "path", "default": ""},
    "external_ip": {"type": "bool"},
    "tag": {"type": "str", "default": ""},
    "disks": {"type": "bool", "default": False},
    "agreed": {"type": "list", "elements": "str"},
    "recreate": {"type": "bool", "default": False},
    "replace_dead": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 1800},
    "wait_for_capacity": {"type": "int", "default": 0},
}


class ActionModule(ActionBase):
    """Makes the missing TPUs of a fleet, or removes some, side by side."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Work, and give one result for all; failed if any TPU is."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(argument_spec=_SPEC)
        try:
            if given["only"] is not None and not given["only"].strip():
                raise NotConfigured("the name of the TPU is empty (-e tpu=): say one, or none")
            if given["only"]:
                only, zone = name_and_zone(given["only"])
                given |= {"only": only, "zone": zone or given["zone"]}
            parse_fleet_name(given["fleet_name"])
            api = TpuApi(ApiSettings.of(given["api"]))
            work = self._absent if given["state"] == "absent" else self._present
            result |= work(api, given)
        except TpuApiError as error:
            result |= {"failed": True, "msg": str(error), "reason": error.reason}
        return result

    def _present(self, api: TpuApi, given: Mapping[str, Any]) -> dict[str, Any]:
        fleet = expand(given["fleet"])
        seen = tpu_fleet.survey(api, fleet, _zones(given), _is_own(given))
        chosen = tuple(
            _with_default(tpu, given["external_ip"])
            for tpu in choose(fleet, given["only"] or "")
            if given["zone"] in ("", *tpu.zones)
        )
        chosen = tuple(
            _with_label(tpu, given["fleet_name"], seen.present.get(tpu.name)) for tpu in chosen
        )
        if given["tag"]:
            chosen = tuple(
                _with_tag(tpu, given["tag"], seen.present.get(tpu.name)) for tpu in chosen
            )
        if given["os_login"]:
            chosen = tuple(_with_metadata(tpu, OS_LOGIN_ENTRY, "TRUE") for tpu in chosen)
        elif given["ssh_public_key_file"]:
            entry = f"{given['ssh_user']}:{self._public_key(given['ssh_public_key_file'])}"
            chosen = tuple(_with_key(tpu, entry) for tpu in chosen)
        done = tpu_fleet.create(api, chosen, seen.present, self._options(given), _Teller())
        return _result(done) | {
            "unwanted": [
                tpu_fleet.described(node) for node in seen.unwanted if _is_own(given)(node)
            ],
            "doomed": [tpu_fleet.described(each.replaced) for each in done if each.replaced],
        }

    def _absent(self, api: TpuApi, given: Mapping[str, Any]) -> dict[str, Any]:
        listed = [parse_node(node) for node in api.list_nodes(_zones(given)).nodes]
        if given["node_id"]:
            return self._absent_by_id(api, given, listed)
        everything = expand(given["fleet"])
        fleet = () if given["only"] else everything
        waiting = tpu_queued.waiting(
            [parse_request(request) for request in api.list_requests(_zones(given))],
            listed,
            {(given["only"], given["zone"])}
            if given["only"]
            else {(tpu.name, tpu.zones[0]) for tpu in fleet if tpu.queued},
        )
        meant = [tpu for tpu in everything if given["only"] in (None, tpu.name)]
        kept: list[Node] = []
        if not given["only"]:
            own = _is_own(given)
            seen = tpu_fleet.sort_nodes(fleet, listed, _zones(given), own)
            nodes = [node for node in seen.present.values() if own(node)]
            kept = [node for node in seen.present.values() if not own(node)]
        else:
            # One that the fleet or the queue knows by name is gone already; another is a slip.
            known = waiting or any(given["zone"] in ("", *tpu.zones) for tpu in meant)
            nodes = tpu_fleet.find(listed, given["only"], given["zone"], known=bool(known))
        # Looked for before the TPUs go, which are what name them.
        wanted = [choice for tpu in meant for choice in tpu.choices]
        disks = made_disks(api, nodes, wanted) if given["disks"] else []
        options, tell = self._options(given), _Teller()
        done = tpu_fleet.delete_requests(api, waiting, options, tell)
        done += tpu_fleet.delete(api, nodes, options, tell)
        if not any(each.failed for each in done):
            done += tpu_fleet.delete_disks(api, disks, options)
        doomed = [tpu_queued.described(request) for request in waiting]
        doomed += [_described(node, given) for node in nodes]
        result = _result(done) | {"doomed": [*doomed, *(disk.described() for disk in disks)]}
        if kept:
            result["warnings"] = [*result.get("warnings", []), *map(_kept_line, kept)]
        return result

    def _absent_by_id(
        self, api: TpuApi, given: Mapping[str, Any], listed: Sequence[Node]
    ) -> dict[str, Any]:
        """Remove one TPU by its id, as nobody watches: it must belong to this fleet."""
        try:
            wanted = NodeIdentity.parse(given["only"], given["zone"], given["node_id"])
        except ValueError as error:
            raise NotConfigured(str(error)) from None
        nodes = [node for node in listed if (node.name, node.zone) == (wanted.name, wanted.zone)]
        for node in nodes:
            if blocker := deletion_blocker(node, wanted, given["fleet_name"]):
                raise Different(f"{blocker}. Nothing was deleted")
        done = tpu_fleet.delete(api, nodes, self._options(given), _Teller())
        result = _result(done) | {"doomed": [_described(node, given) for node in nodes]}
        if not nodes:
            result["msg"] = f"TPU {wanted.name} ({wanted.zone}) is gone already"
        return result

    def _options(self, given: Mapping[str, Any]) -> tpu_fleet.Options:
        return tpu_fleet.Options(
            check=self._task.check_mode,
            recreate=given["recreate"],
            replace_dead=given["replace_dead"],
            timeout=given["timeout"],
            wait_for_capacity=given["wait_for_capacity"],
            known_hosts_file=given["known_hosts_file"],
            agreed=None if given["agreed"] is None else frozenset(given["agreed"]),
            check_owner=_owner_check(given),
        )

    def _public_key(self, path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            if self._task.check_mode:
                return "(a key that does not exist yet)"
            raise NotConfigured(
                f"can't read ssh_public_key_file {path}: {error.strerror}"
            ) from None


class _Teller:
    """Says what the TPUs are doing: each new state, and every ten seconds that it is still so."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, name: str, state: str) -> None:
        now = time.monotonic()
        with self._lock:
            before, when = self._said.get(name, ("", 0.0))
            if state == before and now - when < SAY_AGAIN:
                return
            self._said[name] = (state, now)
            Display().display(f"  {name}: {state}, {now - self._began:.0f} s", screen_only=True)


def _zones(given: Mapping[str, Any]) -> Sequence[str]:
    return [str(zone) for zone in given["api"].get("zones") or ["-"]]


def _is_own(given: Mapping[str, Any]) -> Callable[[Node], bool]:
    return lambda node: is_ours(node.labels, given["fleet_name"])


def _owner_check(given: Mapping[str, Any]) -> Callable[[Node], None]:
    def check(node: Node) -> None:
        if blocker := adoption_blocker(node, given["fleet_name"], given["adopt"]):
            raise Different(blocker)
        if given["node_id"] and node.state in DEAD_STATES and node.id != given["node_id"]:
            raise Different(
                f"TPU {node.where} is {node.state}, but not the one to replace (id {node.id}, "
                f"not {given['node_id']}). Replace it: ansible-playbook playbooks/create.yml "
                f"-e tpu={node.name}"
            )

    return check


def _described(node: Node, given: Mapping[str, Any]) -> dict[str, Any]:
    return tpu_fleet.described(node) | {"is_ours": _is_own(given)(node)}


def _kept_line(node: Node) -> str:
    return (
        f"TPU {node.where} is left alone: this fleet did not create it. To delete it, name it: "
        f"ansible-playbook playbooks/delete.yml -e tpu={node.name} -e zone={node.zone}"
    )


def _with_label(tpu: FleetTpu, fleet_name: str, there: Node | None) -> FleetTpu:
    """Add the label of the fleet to the labels that are given, else to those that the TPU has."""
    had = there.labels if there else {}
    choices = (
        replace(
            choice,
            labels={**(had if choice.labels is None else choice.labels), LABEL: fleet_name},
        )
        for choice in tpu.choices
    )
    return replace(tpu, choices=tuple(choices))


def _with_default(tpu: FleetTpu, external_ip: bool | None) -> FleetTpu:
    choices = (
        choice if choice.external_ip is not None else replace(choice, external_ip=external_ip)
        for choice in tpu.choices
    )
    return replace(tpu, choices=tuple(choices))


def _with_tag(tpu: FleetTpu, tag: str, there: Node | None) -> FleetTpu:
    """Add a network tag to those that are said; where none are, to those that the TPU has."""
    had = there.tags if there else ()
    choices = (
        replace(choice, tags=tuple(dict.fromkeys([*(choice.tags or had), tag])))
        for choice in tpu.choices
    )
    return replace(tpu, choices=tuple(choices))


def _with_metadata(tpu: FleetTpu, key: str, value: str) -> FleetTpu:
    choices = (
        replace(choice, metadata={**(choice.metadata or {}), key: value}) for choice in tpu.choices
    )
    return replace(tpu, choices=tuple(choices))


def _with_key(tpu: FleetTpu, entry: str) -> FleetTpu:
    return replace(tpu, choices=tuple(_choice_with_key(choice, entry) for choice in tpu.choices))


def _choice_with_key(choice: Wanted, entry: str) -> Wanted:
    metadata = dict(choice.metadata or {})
    lines = [*metadata.get(KEYS_ENTRY, "").splitlines(), entry]
    return replace(choice, metadata=metadata | {KEYS_ENTRY: "\n".join(dict.fromkeys(lines))})


def _result(done: Sequence[tpu_fleet.Done]) -> dict[str, Any]:
    failed = [each for each in done if each.failed]
    result: dict[str, Any] = {
        "changed": any(each.changed for each in done),
        "failed": bool(failed),
        "msg": "; ".join(each.msg for each in failed or done) or "no TPU is meant",
        "tpus": [
            {
                "name": each.name,
                "zone": each.zone,
                "changed": each.changed,
                "failed": each.failed,
                "reason": each.reason,
                "msg": each.msg,
                "node": dict(each.node),
            }
            for each in done
        ],
        "diff": [
            {
                "before": dict(each.before),
                "after": dict(each.after),
                "before_header": f"TPU {each.name}",
                "after_header": f"TPU {each.name}",
            }
            for each in done
            if each.changed
        ],
    }
    warnings = [warning for each in done for warning in each.warnings]
    if warnings:
        result["warnings"] = warnings
    if failed:
        result["reason"] = failed[0].reason
    return result
