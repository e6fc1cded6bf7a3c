# ruff: noqa: N818  the names follow the API's error codes
"""Errors of Google's APIs, each with a one-line message.

The classes follow Google's error model (https://google.aip.dev/193): an HTTP status, a canonical
code such as ``NOT_FOUND``, a message, and details of known types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SECRETS = re.compile(
    r"(?i)bearer\s+[^\s\"',;]+"
    r"|ya29\.[\w.\-]+"
    r"|eyJ[\w\-]+\.[\w\-]+\.[\w\-]*"
    r"|(?<=access_token)[\"'=:\s]+[^\s\"',;&}]+"
    r"|(?<=assertion)[\"'=:\s]+[^\s\"',;&}]+"
    r"|-----BEGIN[^-]*PRIVATE KEY-----.*?(?:-----END[^-]*-----|$)",
    re.DOTALL,
)


def one_line(text: object) -> str:
    """Return the text as one line, without control characters, and with tokens and keys hidden."""
    clean = _SECRETS.sub("(hidden)", str(text))
    return " ".join("".join(c if c.isprintable() else " " for c in clean).split())


class CloudError(Exception):
    """Error of a request to a cloud API: a one-line message, and a code (``reason``)."""

    reason = "error"

    def __init__(self, text: object) -> None:
        super().__init__(one_line(text))


class NotConfigured(CloudError):
    """A setting is missing or has an invalid value."""

    reason = "configuration"


class Unauthorized(CloudError):
    """There are no credentials, or the API rejects them (HTTP 401)."""

    reason = "unauthorized"


class Forbidden(CloudError):
    """The credentials are valid but lack the permission (HTTP 403).

    If ``is_about_project``, they lack it in the whole project, and the message says how to fix it.
    """

    reason = "forbidden"

    def __init__(self, text: object, *, is_about_project: bool = False) -> None:
        super().__init__(f"{text}; {CHECK_PROJECT}" if is_about_project else text)
        self.is_about_project = is_about_project


class NotFound(CloudError):
    """The resource does not exist (HTTP 404).

    ``is_from_api`` is false if the response contains no API error: a proxy may have sent it.
    """

    reason = "not_found"

    def __init__(self, text: object, *, is_from_api: bool = True) -> None:
        super().__init__(text)
        self.is_from_api = is_from_api


class AlreadyExists(CloudError):
    """A resource of this name already exists (HTTP 409)."""

    reason = "already_exists"


class Conflict(CloudError):
    """The object has changed since it was read (HTTP 412)."""

    reason = "conflict"


class InvalidRequest(CloudError):
    """The API rejects the request: a wrong type, zone, runtime, name or state (HTTP 400)."""

    reason = "invalid"


class Different(CloudError):
    """The existing resource differs from the desired one, and can't or must not be changed."""

    reason = "different"


class QuotaError(CloudError):
    """The project's quota is used up; waiting does not help.

    ``is_of_chips`` is false if Compute Engine reports the error: it has quotas of disks and
    addresses.
    """

    reason = "quota"

    def __init__(self, text: object, *, is_of_chips: bool = True) -> None:
        super().__init__(text)
        self.is_of_chips = is_of_chips


class CapacityError(CloudError):
    """The zone has no free TPU of this type now; another zone or a later try may succeed."""

    reason = "capacity"


class Unavailable(CloudError):
    """The last try failed with a status in TRANSIENT_STATUSES, such as HTTP 429 or 503."""

    reason = "unavailable"


class NoAnswer(CloudError):
    """No response: connection refused, dropped or timed out. The request may have taken effect."""

    reason = "no_answer"


class PartialAnswer(CloudError):
    """A list is partial: some zones did not respond, so resources may be missing from it."""

    reason = "partial"


class BadAnswer(CloudError):
    """Malformed API response: not JSON, or fields of unexpected types."""

    reason = "bad_answer"


class BadObject(BadAnswer):
    """An object in a bucket contains something other than a JSON object."""


class OperationFailed(CloudError):
    """A long-running operation failed, or its resource disappeared before it ended."""

    reason = "operation"


class DeadlineExceeded(CloudError):
    """The operation did not end within the timeout. It continues in the cloud."""

    reason = "deadline"


GET_CREDENTIALS = (
    "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS "
    "or credentials_file to a service account's key file"
)

#: Google returns the same error whether the project does not exist, belongs to somebody else, or
#: grants the account no role, so the advice covers all three cases.
CHECK_PROJECT = (
    "if the project is not yours, set project in tpu.yml to one that `gcloud projects list` "
    "shows; if it is yours, the account has no role in it, such as roles/tpu.admin"
)
_OF_A_PROJECT = re.compile(
    r"on resource \W*(?:[\w.]+/)?projects?[/ ]|permission for 'projects/[^/']+'"
)
"""Text in errors of the Cloud TPU and the Compute Engine API that concern access to a project.

Other errors concern the permission for one resource of the project.
"""
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


def error_body(answer: object) -> Mapping[str, Any]:
    """Return the ``{code, message, status, details}`` of an error response.

    ``answer`` is the parsed JSON of a response. Returns an empty dictionary if there is no error.
    """
    error = answer.get("error") if isinstance(answer, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def _names_a_quota(error: Mapping[str, Any]) -> bool:
    """Return whether a 429 RESOURCE_EXHAUSTED was caused by a used-up quota, not by a rate limit.

    The message for a used-up TPU quota reads ``Quota limit 'TPUV3sPodPerProjectPerZone…' has been
    exceeded. Limit: …`` or ``Quota 'TPUV3sPodPerProjectPerZone…' exhausted. Limit …``. A rate limit
    error reads ``Quota exceeded for quota metric '…'``, or has an ErrorInfo with the reason
    RATE_LIMIT_EXCEEDED.
    """
    details = error.get("details")
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, Mapping) and detail.get("reason") == "RATE_LIMIT_EXCEEDED":
            return False
    return bool(re.search(r"(?i)quota (?:limit )?['\"]", str(error.get("message", ""))))


def _listed_reasons(error: Mapping[str, Any]) -> set[str]:
    """Return the ``reason`` of every entry in an error's list ``errors``.

    Only errors of Compute Engine and Cloud Storage have this list. Returns an empty set for others.
    """
    entries = error.get("errors")
    return {
        str(entry.get("reason"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping)
    }


def is_transient(status: int, answer: object) -> bool:
    """Return whether a retry may help: true for TRANSIENT_STATUSES, false for a used-up quota.

    ``status`` and ``answer`` are the HTTP status and the parsed JSON of a response. Compute Engine
    also reports rate limits as HTTP 403.
    """
    error = error_body(answer)
    if status == 403:
        return bool(_listed_reasons(error) & {"rateLimitExceeded", "userRateLimitExceeded"})
    return status in TRANSIENT_STATUSES and not _names_a_quota(error)


def from_http(status: int, answer: object, action: str) -> CloudError:
    """Return the typed error for an unsuccessful HTTP response.

    ``status`` and ``answer`` are the response's HTTP status and parsed JSON. ``action`` describes
    the request: ``list the TPUs of zone us-central2-b``.
    """
    error = error_body(answer)
    message = one_line(error.get("message") or f"HTTP {status}")
    if status == 401:
        return Unauthorized(f"can't {action}: the credentials are not accepted; {GET_CREDENTIALS}")
    if "quotaExceeded" in _listed_reasons(error):
        return QuotaError(f"can't {action}: {message}", is_of_chips=False)
    if status == 403:
        is_about_project = _OF_A_PROJECT.search(message) is not None
        return Forbidden(f"can't {action}: {message}", is_about_project=is_about_project)
    if status == 404:
        return NotFound(f"can't {action}: {message}", is_from_api=bool(error))
    if status == 409:
        return AlreadyExists(f"can't {action}: {message}")
    if status == 412:
        return Conflict(f"can't {action}: it has changed since it was read")
    if _names_a_quota(error):
        return QuotaError(f"can't {action}: {message}")
    if status in TRANSIENT_STATUSES:
        return Unavailable(
            f"can't {action}: the API returned HTTP {status} ({message}). Try again later"
        )
    return InvalidRequest(f"can't {action}: {message}")


def from_operation(error: Mapping[str, Any], action: str) -> CloudError:
    """Return the typed error for the ``error`` of a failed operation.

    ``error`` is a google.rpc.Status, or Compute Engine's ``{errors: [{code, message}]}``.
    ``action`` describes the operation.
    """
    if "errors" in error:
        return _from_compute_operation(error["errors"], action)
    message = one_line(error.get("message") or f"error code {error.get('code')}")
    if error.get("code") == 8 and _names_a_quota(error):
        return QuotaError(f"can't {action}: {message}")
    # If a reservation is used up, the code is 9 (FAILED_PRECONDITION), not 8 (RESOURCE_EXHAUSTED).
    if error.get("code") == 8 or message.startswith("Insufficient reserved capacity"):
        return CapacityError(f"can't {action}: {message} (try another zone, or again later)")
    return OperationFailed(f"can't {action}: {message}")


def _from_compute_operation(entries: Any, action: str) -> CloudError:
    details = [entry for entry in entries if isinstance(entry, Mapping)] if entries else []
    codes = {str(entry.get("code")) for entry in details}
    messages = "; ".join(str(entry.get("message") or entry.get("code")) for entry in details)
    text = f"can't {action}: {messages or 'the operation failed without an error message'}"
    if "QUOTA_EXCEEDED" in codes:
        return QuotaError(text, is_of_chips=False)
    if any("RESOURCE_POOL_EXHAUSTED" in code for code in codes):
        return CapacityError(text)
    return OperationFailed(text)
