"""The one client of Google's Compute Engine API v1, for what a fleet of TPUs needs of it.

That is firewall rules, networks, disks, and the operations that make them
(https://cloud.google.com/compute/docs/reference/rest/v1). Requests, errors and waits are as
tpu_api.py's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from . import tpu_errors as errors
from .google_http import list_of
from .tpu_api import TpuApi

_LARGEST_PAGE = "maxResults"


class ComputeApi:
    """A client for the project of a TpuApi. Every method raises TpuApiError only."""

    def __init__(self, beside: TpuApi) -> None:
        self.settings = beside.settings
        self.deadline_in = beside.deadline_in
        self._pause = beside.pause
        self._http = beside.http_to(beside.settings.compute_address)

    # --- firewall rules and networks -------------------------------------------------------------

    def list_firewalls(self) -> list[Mapping[str, Any]]:
        """List all firewall rules of the project."""
        what = "list the firewall rules"
        path = f"{self._project}/global/firewalls"
        pages = self._http.pages(path, what, size=_LARGEST_PAGE)
        return [rule for page in pages for rule in list_of(page, "items", Mapping, what)]

    def insert_firewall(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask for a firewall rule; give the operation. AlreadyExists is another's."""
        what = f"make the firewall rule {body['name']}"
        return self._change("POST", f"{self._project}/global/firewalls", what, body)

    def patch_firewall(self, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change the given fields of a firewall rule; give the operation."""
        return self._change(
            "PATCH", self._firewall_path(name), f"change the firewall rule {name}", body
        )

    def delete_firewall(self, name: str) -> Mapping[str, Any] | None:
        """Delete a firewall rule; give the operation, None if there is none (any more)."""
        return self._delete(self._firewall_path(name), f"delete the firewall rule {name}")

    def get_network(self, name: str) -> Mapping[str, Any] | None:
        """Give one network as JSON, None if there is none."""
        path = f"{self._project}/global/networks/{quote(name, safe='')}"
        return self._get(path, f"read the network {name}")

    # --- disks -----------------------------------------------------------------------------------

    def get_disk(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Give one disk as JSON, None if there is none."""
        return self._get(self._disk_path(zone, name), f"read the disk {name} ({zone})")

    def insert_disk(self, zone: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask for a disk; give the operation. AlreadyExists is another's."""
        what = f"make the disk {body['name']} ({zone})"
        return self._change("POST", f"{self._project}/zones/{zone}/disks", what, body)

    def delete_disk(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Delete a disk; return the operation, None if there is none (any more).

        As for TpuApi.delete_node: check which one it is before each try.
        """
        what = f"delete the disk {name} ({zone})"
        return self._delete(self._disk_path(zone, name), what, once=True)

    # --- operations ------------------------------------------------------------------------------

    def wait(
        self,
        operation: Mapping[str, Any],
        what: str,
        deadline: float,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until the operation is DONE; ``deadline`` on the monotonic clock, in seconds.

        Raises the operation's own error (CapacityError, QuotaError, OperationFailed) or
        DeadlineExceeded.
        """
        tried = 0
        path = self._operation_path(operation, what)
        while operation.get("status") != "DONE":
            self._pause(what, tried, deadline)
            progress()
            tried += 1
            try:
                operation = self._http.ask("GET", path, f"see how it goes: {what}")
            except errors.NotFound:
                return  # forgotten after a while; what came of it is for the caller to see
        error = operation.get("error")
        if isinstance(error, Mapping) and error:
            raise errors.from_compute_operation(error, what)

    # --- requests --------------------------------------------------------------------------------

    def _change(
        self, method: str, path: str, what: str, body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        # All tries carry one request id, so that they are one request.
        params = {"requestId": str(uuid.uuid4())}
        return self._http.ask(method, path, what, params=params, body=body)

    def _delete(self, path: str, what: str, *, once: bool = False) -> Mapping[str, Any] | None:
        params = {"requestId": str(uuid.uuid4())}
        try:
            return self._http.ask("DELETE", path, what, params=params, once=once)
        except errors.NotFound:
            return None

    def _get(self, path: str, what: str) -> Mapping[str, Any] | None:
        try:
            return self._http.ask("GET", path, what)
        except errors.NotFound:
            return None

    @property
    def _project(self) -> str:
        return f"/projects/{quote(self.settings.project, safe=':')}"

    def _firewall_path(self, name: str) -> str:
        return f"{self._project}/global/firewalls/{quote(name, safe='')}"

    def _disk_path(self, zone: str, name: str) -> str:
        return f"{self._project}/zones/{quote(zone, safe='')}/disks/{quote(name, safe='')}"

    def _operation_path(self, operation: Mapping[str, Any], what: str) -> str:
        name, zone = operation.get("name"), operation.get("zone")
        if not isinstance(name, str) or not name:
            raise errors.BadAnswer(f"can't {what}: the answer is no operation")
        place = f"zones/{quote(str(zone).rsplit('/', 1)[-1], safe='')}" if zone else "global"
        return f"{self._project}/{place}/operations/{quote(name, safe='')}"
