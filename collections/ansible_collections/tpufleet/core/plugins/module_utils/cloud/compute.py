"""Client of Google's Compute Engine API v1: firewall rules and disks.

Reference: https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from . import errors
from .http import GoogleApi, list_of
from .names import last_part


class ComputeApi(GoogleApi):
    """Compute Engine client for one project. Thread-safe. Methods raise only CloudError.

    Methods that take a ``deadline`` wait until the change is done. They raise DeadlineExceeded when
    ``polling.clock`` reaches the deadline.
    """

    @property
    def _address(self) -> str:
        return self.settings.compute_address

    # --- firewall rules --------------------------------------------------------------------------

    def list_firewalls(self) -> list[Mapping[str, Any]]:
        """List all firewall rules of the project."""
        action = "list the firewall rules"
        pages = self._http.pages(f"{self._project}/global/firewalls", action, size="maxResults")
        return [rule for page in pages for rule in list_of(page, "items", Mapping, action)]

    def insert_firewall(self, body: Mapping[str, Any], deadline: float) -> None:
        """Create a firewall rule. Raises AlreadyExists."""
        action = f"create the firewall rule {body['name']}"
        self._change("POST", f"{self._project}/global/firewalls", action, body, deadline)

    def patch_firewall(self, name: str, body: Mapping[str, Any], deadline: float) -> None:
        """Change the given fields of a firewall rule."""
        action = f"change the firewall rule {name}"
        self._change("PATCH", self._firewall_path(name), action, body, deadline)

    def get_firewall(self, name: str) -> Mapping[str, Any] | None:
        """Return a firewall rule as JSON, None if it does not exist."""
        return self._get(self._firewall_path(name), f"read the firewall rule {name}")

    def delete_firewall(self, name: str) -> Mapping[str, Any] | None:
        """Request the deletion of a firewall rule, without retries.

        Returns the operation, or None if the rule does not exist.
        """
        return self._delete(self._firewall_path(name), f"delete the firewall rule {name}")

    # --- disks -----------------------------------------------------------------------------------

    def get_disk(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Return a disk as JSON, None if it does not exist."""
        return self._get(self._disk_path(zone, name), f"read the disk {name} ({zone})")

    def insert_disk(self, zone: str, body: Mapping[str, Any], deadline: float) -> None:
        """Create a disk. Raises AlreadyExists."""
        action = f"create the disk {body['name']} ({zone})"
        self._change("POST", f"{self._project}/zones/{zone}/disks", action, body, deadline)

    def set_access_mode(self, zone: str, name: str, mode: str, deadline: float) -> None:
        """Change a Hyperdisk's access mode."""
        action = f"change the access mode of the disk {name} ({zone})"
        path = f"{self._disk_path(zone, name)}?paths=accessMode"
        self._change("PATCH", path, action, {"accessMode": mode}, deadline)

    def delete_disk(self, zone: str, name: str) -> Mapping[str, Any] | None:
        """Request the deletion of a disk, without retries.

        Returns the operation, or None if the disk does not exist.
        """
        return self._delete(self._disk_path(zone, name), f"delete the disk {name} ({zone})")

    def _change(
        self,
        method: str,
        path: str,
        action: str,
        body: Mapping[str, Any],
        deadline: float,
    ) -> None:
        # All tries share one request id, so that the API applies the change only once.
        params = {"requestId": str(uuid.uuid4())}
        operation = self._http.ask(method, path, action, params=params, body=body)
        self.wait(operation, action, deadline)

    @property
    def _project(self) -> str:
        return f"/projects/{quote(self.settings.project, safe=':')}"

    def _firewall_path(self, name: str) -> str:
        return f"{self._project}/global/firewalls/{quote(name, safe='')}"

    def _disk_path(self, zone: str, name: str) -> str:
        return f"{self._project}/zones/{quote(zone, safe='')}/disks/{quote(name, safe='')}"

    def _operation_path(self, operation: Mapping[str, Any], action: str) -> str:
        name, zone = operation.get("name"), operation.get("zone")
        if not isinstance(name, str) or not name:
            raise errors.BadAnswer(f"can't {action}: malformed API response: not an operation")
        scope = f"zones/{quote(last_part(str(zone)), safe='')}" if zone else "global"
        return f"{self._project}/{scope}/operations/{quote(name, safe='')}"
