"""Client of Google's Compute Engine API v1: firewall rules, disks, operations.

Reference: https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from . import errors
from .http import GoogleHttp, Polling, RetryPolicy, list_of
from .names import last_part
from .session import ApiSettings, open_session

_PAGE_SIZE = "maxResults"


class ComputeApi:
    """Compute Engine client for one project. Thread-safe. Methods raise only CloudError."""

    def __init__(
        self,
        settings: ApiSettings,
        *,
        retry: RetryPolicy | None = None,
        polling: Polling | None = None,
    ) -> None:
        self.settings = settings
        self.polling = polling or Polling()
        self._http = GoogleHttp(
            settings.compute_address,
            partial(open_session, settings.compute_address, settings.credentials_file),
            retry=retry,
            sleep=self.polling.sleep,
        )

    # --- firewall rules --------------------------------------------------------------------------

    def list_firewalls(self) -> list[Mapping[str, Any]]:
        """List all firewall rules of the project."""
        what = "list the firewall rules"
        pages = self._http.pages(f"{self._project}/global/firewalls", what, size=_PAGE_SIZE)
        return [rule for page in pages for rule in list_of(page, "items", Mapping, what)]

    def insert_firewall(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Request the creation of a firewall rule; return the operation. Raises AlreadyExists."""
        what = f"create the firewall rule {body['name']}"
        return self._change("POST", f"{self._project}/global/firewalls", what, body)

    def patch_firewall(self, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change the given fields of a firewall rule; return the operation."""
        return self._change(
            "PATCH", self._firewall_path(name), f"change the firewall rule {name}", body
        )

    def get_firewall(self, name: str) -> Mapping[str, Any] | None:
        """Return a firewall rule as JSON, None if it does not exist."""
        return self._get(self._firewall_path(name), f"read the firewall rule {name}")

    def delete_firewall(self, name: str) -> Mapping[str, Any] | None:
        """Request the deletion of a firewall rule; return the operation, None if no rule exists.

        Not retried, because at the next try the name may be another's: the caller checks the id
        before each try (deletion.py).
        """
        return self._delete(self._firewall_path(name), f"delete the firewall rule {name}")

    # --- disks -----------------------------------------------------------------------------------

    def get_disk(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Return a disk as JSON, None if it does not exist."""
        return self._get(self._disk_path(zone, name), f"read the disk {name} ({zone})")

    def insert_disk(self, zone: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Request the creation of a disk; return the operation. Raises AlreadyExists."""
        what = f"create the disk {body['name']} ({zone})"
        return self._change("POST", f"{self._project}/zones/{zone}/disks", what, body)

    def set_access_mode(self, zone: str, name: str, mode: str) -> Mapping[str, Any]:
        """Request another access mode of a Hyperdisk; return the operation."""
        what = f"change the access mode of the disk {name} ({zone})"
        params = {"paths": "accessMode"}
        return self._change(
            "PATCH", self._disk_path(zone, name), what, {"accessMode": mode}, params
        )

    def delete_disk(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Request the deletion of a disk; return the operation, None if it does not exist.

        Not retried, because at the next try the name may be another's: the caller checks the id
        before each try (deletion.py).
        """
        what = f"delete the disk {name} ({zone})"
        return self._delete(self._disk_path(zone, name), what)

    # --- operations ------------------------------------------------------------------------------

    def wait(
        self,
        operation: Mapping[str, Any],
        what: str,
        deadline: float,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until an operation is DONE.

        ``what`` describes the operation in errors, ``deadline`` is a time of ``polling.clock``, and
        ``progress`` is called before each poll. Raises the operation's own error (CapacityError,
        QuotaError, OperationFailed) or DeadlineExceeded.
        """
        tried = 0
        path = self._operation_path(operation, what)
        while operation.get("status") != "DONE":
            self.polling.pause(what, tried, deadline)
            progress()
            tried += 1
            try:
                operation = self._http.ask("GET", path, f"read the operation: {what}")
            except errors.NotFound:
                return  # the API forgets finished operations; the caller reads the resource
        error = operation.get("error")
        if isinstance(error, Mapping) and error:
            raise errors.from_compute_operation(error, what)

    # --- requests --------------------------------------------------------------------------------

    def _change(
        self,
        method: str,
        path: str,
        what: str,
        body: Mapping[str, Any],
        more: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        # All tries share one request id, so that the API applies the change only once.
        params = {"requestId": str(uuid.uuid4()), **(more or {})}
        return self._http.ask(method, path, what, params=params, body=body)

    def _delete(self, path: str, what: str) -> Mapping[str, Any] | None:
        params = {"requestId": str(uuid.uuid4())}
        try:
            return self._http.ask("DELETE", path, what, params=params, once=True)
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
            raise errors.BadAnswer(f"can't {what}: malformed API response: not an operation")
        scope = f"zones/{quote(last_part(str(zone)), safe='')}" if zone else "global"
        return f"{self._project}/{scope}/operations/{quote(name, safe='')}"
