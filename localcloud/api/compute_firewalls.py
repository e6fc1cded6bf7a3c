"""The methods of Compute's ``firewalls``. The rules are remembered; they filter no packets here."""

from collections.abc import Mapping
from typing import Any

from localcloud.api.compute_errors import bad_value, missing
from localcloud.api.compute_firewall_message import checked, said
from localcloud.api.compute_frame import PROJECT, SELECTION, Frame
from localcloud.api.compute_table import Resource, ResourceTable
from localcloud.api.routing import Call, Route

COLLECTION = "firewalls"
FIELDS = ("network", "direction", "priority", "disabled", "description", "sourceRanges")


class Firewalls:
    """Answers what is asked of firewall rules."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._table = ResourceTable(frame.database)

    def routes(self) -> tuple[Route, ...]:
        """Give the methods with their paths."""
        every = f"{PROJECT}/global/firewalls"
        one, ids = f"{every}/{{firewall}}", ("requestId",)
        return (
            Route("compute.firewalls.list", "GET", every, self.list, SELECTION),
            Route("compute.firewalls.insert", "POST", every, self.insert, ids),
            Route("compute.firewalls.get", "GET", one, self.get),
            Route("compute.firewalls.patch", "PATCH", one, self.patch, ids),
            Route("compute.firewalls.update", "PUT", one, self.update, ids),
            Route("compute.firewalls.delete", "DELETE", one, self.delete, ids),
        )

    def list(self, call: Call) -> Mapping[str, Any]:
        """Give a page of the rules."""
        items = [self._write(it) for it in self._table.all(COLLECTION)]
        return self._frame.page("firewallList", "global/firewalls", items, call, FIELDS)

    def get(self, call: Call) -> Mapping[str, Any]:
        """Give one rule."""
        return self._write(self._find(call))

    def insert(self, call: Call) -> Mapping[str, Any]:
        """Make a rule; answers the operation."""
        rule = self._whole(said(call.json()))
        target = f"global/firewalls/{rule['name']}"
        with self._frame.database.transaction():
            if found := self._frame.earlier("firewalls.insert", call, target):
                return self._frame.write(found)
            made = self._table.add(COLLECTION, "global", rule["name"], rule)
            return self._begin("insert", call, made)

    def patch(self, call: Call) -> Mapping[str, Any]:
        """Change the fields that are said, a null taking one away; answers the operation."""
        return self._change("patch", call, keep=True)

    def update(self, call: Call) -> Mapping[str, Any]:
        """Replace a rule; answers the operation."""
        return self._change("update", call, keep=False)

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Remove a rule; answers the operation."""
        with self._frame.database.transaction():
            target = f"global/firewalls/{call.names['firewall']}"
            if found := self._frame.earlier("firewalls.delete", call, target):
                return self._frame.write(found)
            rule = self._find(call)
            self._table.remove(rule.uid)
            return self._begin("delete", call, rule)

    def _change(self, verb: str, call: Call, *, keep: bool) -> Mapping[str, Any]:
        new = said(call.json())
        with self._frame.database.transaction():
            rule = self._find(call)
            if found := self._frame.earlier(f"firewalls.{verb}", call, rule.path):
                return self._frame.write(found)
            fixed = {key: rule.body[key] for key in ("name", "network")}
            whole = self._whole({**(rule.body if keep else fixed), **new})
            for key, value in fixed.items():
                if whole[key] != value:
                    raise bad_value(key, whole[key], f"It is {value} and cannot be changed")
            self._table.change(rule.uid, whole)
            return self._begin(verb, call, rule)

    def _whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        network = self._frame.name_of(body.get("network") or "global/networks/default")
        rule = checked({**body, "network": network})
        if self._table.get("networks", "global", network.rpartition("/")[2]) is None:
            why = "The referenced network resource cannot be found."
            raise bad_value("network", network, why)
        return rule

    def _begin(self, verb: str, call: Call, rule: Resource) -> Mapping[str, Any]:
        method = f"firewalls.{verb}"
        return self._frame.begin(method, call, "global", verb, rule.path, rule.uid)

    def _find(self, call: Call) -> Resource:
        name = call.names["firewall"]
        rule = self._table.get(COLLECTION, "global", name)
        if rule is None:
            raise missing(f"{self._frame.project.parent}/global/firewalls/{name}")
        return rule

    def _write(self, rule: Resource) -> dict[str, Any]:
        return {
            "kind": "compute#firewall",
            "id": str(rule.uid),
            "creationTimestamp": rule.create_time,
            **rule.body,
            "network": self._frame.absolute(rule.body["network"]),
            "selfLink": self._frame.link(rule.path),
        }
