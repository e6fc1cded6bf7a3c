"""Validation of resource names, and of JSON fields in responses of cloud APIs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Any

from ..worker.node_identity import NODE_ID, NODE_NAME_PATTERN, REQUEST_NAME_PATTERN, ZONE
from .errors import BadAnswer, NotConfigured
from .names import PROJECT, last_part

_IDENTIFIER = re.compile(r"[A-Za-z0-9_.-]*")


def check_name(name: str) -> None:
    """Check the name of a new TPU or queued resource. Raises NotConfigured."""
    if not re.fullmatch(NODE_NAME_PATTERN, name) or not name[0].isalpha():
        raise NotConfigured(
            f"invalid TPU name ({name!r:.80}). Use up to 63 characters of a-z, 0-9 and -, "
            "beginning with a letter"
        )


def check_zone(zone: str) -> None:
    """Check that a string is the name of a zone, not of a region. Raises NotConfigured."""
    if not re.fullmatch(ZONE, zone):
        raise NotConfigured(
            f"invalid zone ({zone!r:.80}). Use a zone such as us-central2-b; "
            "`gcloud compute tpus locations list` shows all"
        )


def path_parts(data: object, kind: str, resource: str) -> tuple[str, str, str]:
    """Return the project, the zone and the name in a resource's path.

    ``data`` is the resource's JSON, whose field ``name`` has the path. ``kind`` is the collection
    in the path, such as ``nodes``; ``resource`` is what errors call the resource, such as ``TPU``.
    Raises BadAnswer.
    """
    path = data.get("name") if isinstance(data, Mapping) else None
    name = REQUEST_NAME_PATTERN if kind == "queuedResources" else NODE_NAME_PATTERN
    pattern = rf"projects/({PROJECT})/locations/({ZONE})/{kind}/({name})"
    match = re.fullmatch(pattern, path) if isinstance(path, str) else None
    if not match:
        raise BadAnswer(
            f"malformed API response: the name of a {resource} is {path!r:.80}, not "
            f"projects/…/locations/…/{kind}/…"
        )
    return match[1], match[2], match[3]


class Fields:
    """Typed access to a JSON object's fields. Raises BadAnswer for a field of another type.

    ``resource`` names the resource in errors, such as ``TPU demo (us-central2-b)``. In all methods,
    the argument ``name`` is the name of the field.
    """

    def __init__(self, data: object, resource: str) -> None:
        self.resource = resource
        self.data = self._checked(data, Mapping, "it")

    def _checked(self, value: object, kind: type, name: str) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadAnswer(f"{self.resource}: malformed API response: {name} is {value!r:.60}")
        return value

    def _get(self, name: str, kind: type, default: Any) -> Any:
        value = self.data.get(name)
        return default if value is None else self._checked(value, kind, name)

    def text(self, name: str) -> str:
        """Return the string in a field; empty if the field is absent."""
        return str(self._get(name, str, ""))

    def identifier(self, name: str) -> str:
        """Return the string in a field; empty if the field is absent.

        Raises BadAnswer for characters other than letters, digits and ``_.-``.
        """
        value = self.text(name)
        if not _IDENTIFIER.fullmatch(value):
            raise BadAnswer(f"{self.resource}: {name} has invalid characters ({value!r:.60})")
        return value

    def number(self, name: str) -> int:
        """Return the integer >= 0 in a field; 0 if the field is absent.

        The API sends 64-bit integers as strings.
        """
        value = self.data.get(name)
        if isinstance(value, str) and value.isdecimal() and len(value) < 20:
            return int(value)
        number = int(self._get(name, int, 0))
        if number < 0:
            raise BadAnswer(f"{self.resource}: {name} is negative ({number})")
        return number

    def flag(self, name: str) -> bool:
        """Return the boolean in a field; False if absent, because the API omits false fields."""
        return bool(self._get(name, bool, False))

    def nested(self, name: str) -> Fields:
        """Return the object in a field; an empty one if the field is absent."""
        return Fields(self._get(name, Mapping, {}), f"{self.resource}: {name}")

    def nested_list(self, name: str) -> list[Fields]:
        """Return the objects in a list field; an empty list if the field is absent."""
        items = self._get(name, list, [])
        return [Fields(item, f"{self.resource}: {name}[{i}]") for i, item in enumerate(items)]

    def text_map(self, name: str) -> dict[str, str]:
        """Return the object in a field whose values are strings; empty if the field is absent."""
        pairs = self._get(name, Mapping, {})
        return {
            str(key): str(self._checked(value, str, f"{name}.{key}"))
            for key, value in pairs.items()
        }

    def text_list(self, name: str) -> tuple[str, ...]:
        """Return the strings in a list field; an empty tuple if the field is absent."""
        return tuple(str(self._checked(item, str, name)) for item in self._get(name, list, []))

    def request_name(self, name: str) -> str:
        """Return the queued resource's name from the path in a field; empty if absent."""
        value = last_part(self.text(name))
        if value and not re.fullmatch(REQUEST_NAME_PATTERN, value):
            raise BadAnswer(f"{self.resource}: invalid {name} ({value!r:.80})")
        return value

    def address(self, name: str) -> str:
        """Return the IP address in a field; empty if the field is absent."""
        value = self.text(name)
        if not value:
            return ""
        try:
            return str(ip_address(value))
        except ValueError:
            raise BadAnswer(
                f"{self.resource}: {name} is not an IP address ({value!r:.60})"
            ) from None

    def timestamp(self, name: str) -> float:
        """Return the RFC 3339 time in a field as unix seconds; 0 if the field is absent."""
        value = self.text(name)
        if not value:
            return 0.0
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            raise BadAnswer(f"{self.resource}: {name} is not a time ({value!r:.60})") from None

    def id(self) -> str:
        """Return the resource's id, which the API sends as an integer or a string."""
        value = self.data.get("id")
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        text = self.text("id")
        if text and not re.fullmatch(NODE_ID, text):
            raise BadAnswer(f"{self.resource}: invalid id ({text!r:.60})")
        return text
