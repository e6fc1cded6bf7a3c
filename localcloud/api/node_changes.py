"""API methods that change existing nodes: patch, start, stop and maintenance.

``Lifecycle`` does the slow work in the background.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from localcloud.api.errors import ApiError, failed_precondition, invalid
from localcloud.api.message import read
from localcloud.api.methods import Methods, chosen_workers
from localcloud.api.node_message import NODES, is_spot
from localcloud.api.node_table import OFF, RUN, Node
from localcloud.api.project import ALPHA, LOCATION
from localcloud.api.routing import Call, Route, camel_case
from localcloud.api.versions import Version

EXTERNAL = "networkConfig.enableExternalIps"
DISKS = "dataDisks"
_MUTABLE = ("description", "tags", "labels", "metadata", EXTERNAL)
# v2alpha1 can also patch dataDisks, for gcloud alpha's attach-disk and detach-disk.
MUTABLE = {Version.V2: _MUTABLE, Version.V2ALPHA1: (*_MUTABLE, DISKS)}


class NodeChanges(Methods):
    """Handlers of the methods that change nodes, and of all methods that only v2alpha1 has."""

    def routes(self) -> tuple[Route, ...]:
        """Return the HTTP routes and their handlers."""
        node, alpha = f"{LOCATION}/nodes/{{node}}", f"{ALPHA}/nodes/{{node}}"
        queued = f"{ALPHA}/queuedResources/{{request}}"
        simulate, perform = "simulateMaintenanceEvent", "performMaintenance"
        info, perform_one = "getMaintenanceInfo", "performMaintenanceQueuedResource"
        page = ("pageSize", "pageToken")
        start = partial(self._switch, "start", "STOPPED", "STARTING", RUN)
        stop = partial(self._switch, "stop", "READY", "STOPPING", OFF)
        return (
            Route("nodes.patch", "PATCH", node, self._patch, ("updateMask",)),
            Route("nodes.start", "POST", f"{node}:start", start),
            Route("nodes.stop", "POST", f"{node}:stop", stop),
            Route(f"nodes.{simulate}", "POST", f"{alpha}:{simulate}", self._simulate_maintenance),
            Route(f"nodes.{perform}", "POST", f"{alpha}:{perform}", self._perform_maintenance),
            Route(f"queuedResources.{info}", "GET", f"{queued}:{info}", self._maintenance_info),
            Route(
                f"queuedResources.{perform_one}",
                "POST",
                f"{queued}:{perform_one}",
                self._perform_maintenance_of_one,
            ),
            Route("reservations.list", "GET", f"{ALPHA}/reservations", self._reservations, page),
        )

    def _patch(self, call: Call) -> Mapping[str, Any]:
        """Change the node's fields named in ``updateMask``; return the operation.

        The returned operation is running if ``updateMask`` contains the data disks, else done.
        """
        new = read(call.json(), NODES[call.version], "node")
        fields = _mask(call.query.get("updateMask", ""), MUTABLE[call.version])
        with self._database.transaction():
            node = self._find_node(call)
            if node.state not in ("READY", "STOPPED"):
                raise failed_precondition(
                    f"{node.node_id} is {node.state}; it can be changed only when READY or STOPPED"
                )
            if DISKS in fields:
                disks, count = new.get(DISKS, ()), len(node.workers)
                self._resources.check_disks(disks, node.zone, count, owner=node.uid)
            self._nodes.change_body(node.uid, _patched(node, new, fields))
            operation = self._add(call, "update", node.name, node.uid)
            if DISKS not in fields:
                self._lifecycle.succeed(operation)
        if DISKS in fields:
            return self._begin(call, operation)
        ended = self._operations.get(operation.zone, operation.operation_id) or operation
        return self._answer(call, ended)

    def _switch(
        self, verb: str, state: str, new_state: str, desired_state: str, call: Call
    ) -> Mapping[str, Any]:
        """Start or stop (``verb``) a node that has one worker; return the running operation."""
        call.json()
        with self._database.transaction():
            node = self._find_node(call)
            if len(node.workers) > 1:
                raise failed_precondition(
                    f"{node.node_id} has {len(node.workers)} workers: only a TPU with one worker "
                    f"can {verb}; delete it and create it again"
                )
            if is_spot(node.body):
                raise failed_precondition(
                    f"{node.node_id} is spot or preemptible and cannot {verb}: "
                    "delete it and create it again"
                )
            self._move(node, state, new_state, desired_state)
            operation = self._add(call, verb, node.name, node.uid)
        return self._begin(call, operation)

    def _simulate_maintenance(self, call: Call) -> Mapping[str, Any]:
        """Start maintenance of one worker: its machine reboots, its external address changes.

        The request body is ``{workerIds[]}``. Only the first id is used; worker 0 by default.
        """
        ids = call.json().get("workerIds", [])
        return self._maintain(
            call, [worker.index for worker in chosen_workers(self._find_node(call), ids)[:1]]
        )

    def _perform_maintenance(self, call: Call) -> Mapping[str, Any]:
        """Start maintenance of all workers of a node; return the running operation."""
        call.json()
        return self._maintain(call, [worker.index for worker in self._find_node(call).workers])

    def _maintain(self, call: Call, indices: Sequence[int]) -> Mapping[str, Any]:
        with self._database.transaction():
            node = self._find_node(call)
            self._move(node, "READY", "REPAIRING", RUN)
            pool = self._machines.addresses()
            for index in indices:
                self._nodes.assign_external(node.uid, index, pool)
            detail, verb = {"workers": list(indices)}, "simulateMaintenanceEvent"
            operation = self._add(call, verb, node.name, node.uid, detail)
        return self._begin(call, operation)

    def _move(self, node: Node, state: str, new_state: str, desired_state: str) -> None:
        if not self._nodes.move(node.uid, [state], new_state, desired_state=desired_state):
            raise failed_precondition(f"{node.node_id} is {node.state}; it must be {state}")

    def _reservations(self, call: Call) -> Mapping[str, Any]:
        """Return an empty list, because the local cloud has no reservations."""
        return self._project.answer("reservations", [], call, self._project.zones_of(call.names))

    def _maintenance_info(self, call: Call) -> Mapping[str, Any]:
        """Return the name and uid of each node of a queued resource.

        On Google Cloud, the entries also describe upcoming maintenance, which the local cloud never
        schedules.
        """
        nodes = self._nodes_of_queued_resource(call)
        entries = [{"nodeName": node.node_id, "nodeUid": str(node.uid)} for node in nodes]
        return {"nodeUpcomingMaintenances": entries} if entries else {}

    def _perform_maintenance_of_one(self, call: Call) -> Mapping[str, Any]:
        """Start maintenance of the node in the body ``{nodeNames[]}``; return the operation."""
        requested_names = call.json().get("nodeNames", [])
        node_ids = [node.node_id for node in self._nodes_of_queued_resource(call)]
        names = [str(name).rpartition("/")[2] for name in requested_names]
        if not names or not set(names) <= set(node_ids):
            nodes = ", ".join(node_ids) or "no nodes"
            raise failed_precondition(
                f"nodeNames is {requested_names!r}; it must name one of the queued resource's "
                f"nodes ({nodes})"
            )
        if len(names) > 1:
            raise ApiError(501, f"nodeNames has {len(names)} nodes; the local cloud accepts one")
        node_call = replace(call, names={**call.names, "node": names[0]}, content=b"")
        return self._perform_maintenance(node_call)

    def _nodes_of_queued_resource(self, call: Call) -> list[Node]:
        return self._nodes.of_queued_resource(self._find_request(call).uid)


def _mask(text: str, mutable: Sequence[str]) -> list[str]:
    """Parse a field mask; raise HTTP 400 if it is empty or names a field not in ``mutable``."""
    fields = [".".join(map(camel_case, name.split("."))) for name in text.split(",") if name]
    mutable_names = ", ".join(mutable)
    if not fields:
        raise invalid("updateMask", f"updateMask is empty; name one or more of: {mutable_names}")
    for field in fields:
        if field not in mutable:
            raise invalid("updateMask", f"{field} cannot be changed; allowed: {mutable_names}")
    return fields


def _patched(node: Node, new: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the node's body with the values of ``fields`` replaced by those in ``new``."""
    body = dict(node.body)
    for field in fields:
        if field == EXTERNAL:
            if "networkConfig" not in body:
                reason = f"{node.node_id} has networkConfigs, so {EXTERNAL} cannot be changed"
                raise invalid("updateMask", reason)
            network = dict(body["networkConfig"])
            network.pop("enableExternalIps", None)
            if new.get("networkConfig", {}).get("enableExternalIps"):
                network["enableExternalIps"] = True
            body["networkConfig"] = network
        else:
            body.pop(field, None)
            if field in new:
                body[field] = new[field]
    return body
