"""API methods of ``projects.locations.nodes``."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from localcloud.api.catalog import name_of
from localcloud.api.errors import (
    RPC_RESOURCE_EXHAUSTED,
    already_exists,
    failed_precondition,
    invalid,
)
from localcloud.api.methods import Methods, chosen_workers
from localcloud.api.node_message import NODE_ID, accelerator_of, checked_id, read_node, write
from localcloud.api.node_table import DELETABLE, DELETED, NoCapacityError, Worker
from localcloud.api.project import LOCATION
from localcloud.api.routing import Call, Route
from localcloud.machines.interface import MachineError


class Nodes(Methods):
    """Handlers of the node methods; ``Lifecycle`` does the slow work in the background."""

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        nodes, node = f"{LOCATION}/nodes", f"{LOCATION}/nodes/{{node}}"
        attributes = "getGuestAttributes"
        return (
            Route("nodes.list", "GET", nodes, self._list, ("pageSize", "pageToken")),
            Route("nodes.create", "POST", nodes, self._create, ("nodeId",)),
            Route("nodes.get", "GET", node, self._get),
            Route("nodes.delete", "DELETE", node, self._delete),
            Route(f"nodes.{attributes}", "POST", f"{node}:{attributes}", self._guest_attributes),
        )

    def _list(self, call: Call) -> Mapping[str, Any]:
        return self._project.page(call, "nodes", self._nodes, write)

    def _get(self, call: Call) -> Mapping[str, Any]:
        node = self._find_node(call)
        return write(node, call.version)

    def _create(self, call: Call) -> Mapping[str, Any]:
        """Store a node and start creating its machines; return the operation.

        If there is no capacity, no node is stored and the returned operation has failed.
        """
        zone = self._project.zone_of(call.names)
        node_id = checked_id("nodeId", call.query.get("nodeId", ""), NODE_ID)
        new_node = read_node(call.json(), zone, call.version)
        name = name_of("nodes", zone, node_id)
        with self._database.transaction():
            if earlier := self._earlier(call, "create", name):
                return self._answer(call, earlier)
            if self._nodes.get(zone, node_id):
                raise already_exists(name)
            node, accelerator = None, accelerator_of(new_node)
            body = self._resources.resolved(new_node, zone)
            self._quota.check(zone, [new_node])
            shortage = self._faults.shortage(zone, accelerator.name, count=True)
            try:
                if not shortage:
                    node = self._nodes.add(
                        zone,
                        node_id,
                        body,
                        accelerator.workers,
                        self._machines.addresses(),
                        latest_released_first=self._faults.reuses_addresses(zone),
                    )
            except NoCapacityError as error:
                shortage = f"{accelerator.name} {error}"
            operation = self._add(call, "create", name, node.uid if node else 0)
            if node is None:
                message = f'There is no more capacity in the zone "{zone}": {shortage}'
                self._operations.fail(operation, RPC_RESOURCE_EXHAUSTED, message)
        return self._begin(call, operation) if node else self._answer(call, operation)

    def _delete(self, call: Call) -> Mapping[str, Any]:
        name = name_of("nodes", self._project.zone_of(call.names), call.names["node"])
        with self._database.transaction():
            if earlier := self._earlier(call, "delete", name):
                return self._answer(call, earlier)
            node = self._find_node(call)
            if not self._nodes.move(node.uid, DELETABLE, "DELETING", desired_state=DELETED):
                raise failed_precondition(
                    f"{node.node_id} is {node.state}: wait until its state changes, then delete it"
                )
            operation = self._add(call, "delete", name, node.uid)
        return self._begin(call, operation)

    def _guest_attributes(self, call: Call) -> Mapping[str, Any]:
        """Return the ssh host keys of the requested workers, in the requested order.

        The request body is ``{queryPath, workerIds[]}``. ``queryPath`` is "", a namespace
        ("hostkeys/") or a key ("hostkeys/ssh-ed25519"). An empty ``workerIds`` means all workers.
        """
        node = self._find_node(call)
        body = call.json()
        path, ids = body.get("queryPath", ""), body.get("workerIds", [])
        if not isinstance(path, str):
            raise invalid("queryPath", f"queryPath is {path!r}, not a string")
        if node.state != "READY":
            raise failed_precondition(f"{node.node_id} is {node.state}; it must be READY")
        entries = [self._attributes(worker, path) for worker in chosen_workers(node, ids)]
        return {"guestAttributes": entries}

    def _attributes(self, worker: Worker, path: str) -> dict[str, Any]:
        namespace, _, requested_key = path.strip("/").partition("/")
        keys: Mapping[str, str] = {}
        if namespace in ("", "hostkeys"):
            with suppress(MachineError):  # the worker has no host keys before its first boot
                keys = self._machines.host_keys(worker.machine)
        items = [
            {"namespace": "hostkeys", "key": key, "value": value}
            for key, value in sorted(keys.items())
            if requested_key in ("", key)
        ]
        entry: dict[str, Any] = {"queryPath": path} if path else {}
        return {**entry, "queryValue": {"items": items} if items else {}}
