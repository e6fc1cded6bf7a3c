"""API methods of ``projects.locations.nodes``."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from localcloud.api.clock import timestamp
from localcloud.api.data_disks import DataDisks
from localcloud.api.database import Database
from localcloud.api.errors import (
    RPC_RESOURCE_EXHAUSTED,
    ApiError,
    already_exists,
    failed_precondition,
    invalid,
    not_found,
)
from localcloud.api.faults import Faults
from localcloud.api.lifecycle import Lifecycle
from localcloud.api.node_message import write
from localcloud.api.node_networks import NodeNetworks
from localcloud.api.node_request import checked_node_id, requested
from localcloud.api.node_table import GONE, NoCapacityError, Node, NodeTable, Worker
from localcloud.api.operation_table import OperationTable
from localcloud.api.operations import write as write_operation
from localcloud.api.paging import requested_page
from localcloud.api.project import LOCATION, Project
from localcloud.api.quota import Quota
from localcloud.api.request_ids import RequestIds
from localcloud.api.routing import Call, Route
from localcloud.machines.interface import MachineError, Machines

DELETABLE = (
    *("CREATING", "READY", "RESTARTING", "REPAIRING", "STARTING", "STOPPING", "STOPPED"),
    *("PREEMPTED", "TERMINATED"),
)


class Nodes:
    """Handlers of the node methods; ``Lifecycle`` does the slow work in the background."""

    def __init__(
        self,
        database: Database,
        project: Project,
        lifecycle: Lifecycle,
        machines: Machines,
        quota: Quota,
        faults: Faults,
    ) -> None:
        self._database = database
        self._nodes = NodeTable(database)
        self._disks = DataDisks(database)
        self._networks = NodeNetworks(database)
        self._ids = RequestIds(database)
        self._operations = OperationTable(database)
        self._project = project
        self._lifecycle = lifecycle
        self._machines = machines
        self._quota = quota
        self._faults = faults

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        nodes, node = f"{LOCATION}/nodes", f"{LOCATION}/nodes/{{node}}"
        return (
            Route("nodes.list", "GET", nodes, self.list, ("pageSize", "pageToken")),
            Route("nodes.create", "POST", nodes, self.create, ("nodeId",)),
            Route("nodes.get", "GET", node, self.get),
            Route("nodes.delete", "DELETE", node, self.delete),
            Route(
                "nodes.getGuestAttributes",
                "POST",
                f"{node}:getGuestAttributes",
                self.guest_attributes,
            ),
        )

    def list(self, call: Call) -> Mapping[str, Any]:
        """Return a page of the nodes of one zone, or of all zones if the zone is ``-``."""
        scope = self._project.many(call.names)
        page = requested_page(f"nodes in {call.names['zone']}", call.query)
        found = self._nodes.page(scope.zones, page.after, page.size + 1)
        shown, token = page.cut(found, lambda node: (node.zone, node.node_id))
        items = [write(node, self._project.parent, call.version) for node in shown]
        return self._project.answer("nodes", items, scope, token)

    def get(self, call: Call) -> Mapping[str, Any]:
        """Return the node in the call's path."""
        node = find_node(call, self._nodes, self._project)
        return write(node, self._project.parent, call.version)

    def create(self, call: Call) -> Mapping[str, Any]:
        """Store a node and start creating its machines; return the operation.

        If there is no capacity, no node is stored and the returned operation has failed.
        """
        zone = self._project.one(call.names)
        node_id = checked_node_id("nodeId", call.query.get("nodeId", ""))
        wanted = requested(call.json(), self._project.parent, zone, call.version)
        name = f"{self._project.parent}/locations/{zone}/nodes/{node_id}"
        pool = self._machines.addresses()
        request_id = call.query.get("requestId", "")
        with self._database.transaction():
            if found := self._ids.earlier("nodes.create", zone, request_id, name):
                return write_operation(found, self._project.parent, call.version)
            if self._nodes.get(zone, node_id):
                raise already_exists(name)
            count, node = wanted.accelerator.workers, None
            body = self._networks.resolved(wanted.body, self._project.parent, zone)
            self._disks.check(body.get("dataDisks", ()), self._project.parent, zone, count)
            self._quota.check(zone, [wanted])
            shortage = self._faults.shortage(zone, wanted.accelerator.name, count=True)
            try:
                if not shortage:
                    node = self._nodes.add(
                        name,
                        zone,
                        node_id,
                        timestamp(),
                        body,
                        count,
                        pool,
                        latest_released_first=self._faults.reuses_addresses(zone),
                    )
            except NoCapacityError as error:
                shortage = f"for {wanted.accelerator.name} {error}"
            operation = self._operations.add(
                zone, node.uid if node else 0, "create", name, version=call.version
            )
            self._ids.remember("nodes.create", request_id, operation)
            if node is None:
                self._operations.fail(
                    operation,
                    RPC_RESOURCE_EXHAUSTED,
                    f'There is no more capacity in the zone "{zone}": {shortage}',
                )
        if node is not None:
            self._lifecycle.begin(operation)
        return write_operation(operation, self._project.parent, call.version)

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Start deleting a node and its machines; return the running operation."""
        zone, request_id = self._project.one(call.names), call.query.get("requestId", "")
        name = f"{self._project.parent}/locations/{zone}/nodes/{call.names['node']}"
        with self._database.transaction():
            if found := self._ids.earlier("nodes.delete", zone, request_id, name):
                return write_operation(found, self._project.parent, call.version)
            node = find_node(call, self._nodes, self._project)
            if not self._nodes.move(node.uid, DELETABLE, "DELETING", wanted=GONE):
                raise failed_precondition(f"{node.node_id} is {node.state}: wait for that to end")
            operation = self._operations.add(
                node.zone, node.uid, "delete", name, version=call.version
            )
            self._ids.remember("nodes.delete", request_id, operation)
        self._lifecycle.begin(operation)
        return write_operation(operation, self._project.parent, call.version)

    def guest_attributes(self, call: Call) -> Mapping[str, Any]:
        """Return the ssh host keys of the requested workers, in the requested order.

        The request body is ``{queryPath, workerIds[]}``. ``queryPath`` is "", a namespace
        ("hostkeys/") or a key ("hostkeys/ssh-ed25519"). No ids select all workers.
        """
        node = find_node(call, self._nodes, self._project)
        body = call.json()
        path, ids = body.get("queryPath", ""), body.get("workerIds", [])
        if not isinstance(path, str):
            raise invalid("queryPath", f"queryPath is {path!r}, not a string")
        if node.state != "READY":
            raise failed_precondition(f"{node.node_id} is {node.state}, not READY")
        entries = [self._attributes(worker, path) for worker in chosen_workers(node, ids)]
        return {"guestAttributes": entries}

    def _attributes(self, worker: Worker, path: str) -> dict[str, Any]:
        namespace, _, wanted = path.strip("/").partition("/")
        keys: Mapping[str, str] = {}
        if namespace in ("", "hostkeys"):
            with suppress(MachineError):  # the worker has no host keys before its first boot
                keys = self._machines.host_keys(worker.machine)
        items = [
            {"namespace": "hostkeys", "key": key, "value": value}
            for key, value in sorted(keys.items())
            if wanted in ("", key)
        ]
        entry: dict[str, Any] = {"queryPath": path} if path else {}
        return {**entry, "queryValue": {"items": items} if items else {}}


def find_node(call: Call, nodes: NodeTable, project: Project) -> Node:
    """Return the node in a call's path; raise a 404 if it does not exist."""
    zone, node_id = project.one(call.names), call.names["node"]
    node = nodes.get(zone, node_id)
    if node is None:
        raise not_found(f"{project.parent}/locations/{zone}/nodes/{node_id}")
    return node


def chosen_workers(node: Node, ids: Any) -> tuple[Worker, ...]:
    """Return the workers with these ids, all workers for no ids; raise a 400 for an unknown id."""
    if not isinstance(ids, list):
        raise invalid("workerIds", f"workerIds is {ids!r}, not a list")
    # gcloud sends one empty id to select all workers.
    if ids in ([], [""]):
        return node.workers
    by_id = {str(worker.index): worker for worker in node.workers}
    for asked in ids:
        if not isinstance(asked, str) or asked not in by_id:
            known = ", ".join(by_id)
            raise ApiError(400, f"{node.node_id} has no worker {asked!r}; it has {known}")
    return tuple(by_id[asked] for asked in ids)
