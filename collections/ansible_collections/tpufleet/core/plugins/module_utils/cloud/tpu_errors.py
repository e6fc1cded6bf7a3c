# ruff: noqa: N818  the names are the API's own words for its errors
"""What can go wrong between the controller and the Cloud TPU API, each as one readable line.

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
    """Return the text on one line, without control characters, tokens and keys."""
    clean = _SECRETS.sub("(hidden)", str(text))
    return " ".join("".join(c if c.isprintable() else " " for c in clean).split())


class TpuApiError(Exception):
    """The API said no, or nothing. ``str()`` is one line; ``reason`` is one word for programs."""

    reason = "error"

    def __init__(self, text: object) -> None:
        super().__init__(one_line(text))


class NotConfigured(TpuApiError):
    """Something that a person has to fill in is missing or is no valid value."""

    reason = "configuration"


class Unauthorized(TpuApiError):
    """There are no credentials, or the API does not take them (HTTP 401)."""

    reason = "unauthorized"


class Forbidden(TpuApiError):
    """The credentials are good, but not for this (HTTP 403)."""

    reason = "forbidden"


class NotFound(TpuApiError):
    """There is no such thing (HTTP 404)."""

    reason = "not_found"


class AlreadyExists(TpuApiError):
    """There is one already (HTTP 409)."""

    reason = "already_exists"


class InvalidRequest(TpuApiError):
    """The API refuses what was asked for: a wrong type, zone, runtime, name or state (HTTP 400)."""

    reason = "invalid"


class QuotaError(TpuApiError):
    """The project may not have so much of it; waiting does not help."""

    reason = "quota"


class CapacityError(TpuApiError):
    """Google has no such TPU free in the zone now; another zone or a later time may."""

    reason = "capacity"


class Unavailable(TpuApiError):
    """The API went on refusing for the moment (HTTP 429 and 5xx) until patience ran out."""

    reason = "unavailable"


class NoAnswer(TpuApiError):
    """No answer: refused, dropped or timed out. What was asked for may have been done or not."""

    reason = "no_answer"


class PartialAnswer(TpuApiError):
    """A list lacks some zones, so what is missing from it may well exist."""

    reason = "partial"


class BadAnswer(TpuApiError):
    """The answer is none that this API gives: not JSON, or of another shape."""

    reason = "bad_answer"


class OperationFailed(TpuApiError):
    """A long-running operation ended with an error of its own."""

    reason = "operation"


class DeadlineExceeded(TpuApiError):
    """It takes longer than the given time; in the cloud it goes on."""

    reason = "deadline"


GET_CREDENTIALS = (
    "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS "
    "or credentials_file to a service account's key file"
)

#: Google answers the same for a project that is not there, another's, and one's own without a role.
CHECK_PROJECT = (
    "if the project is not yours, `gcloud projects list` says which are (project in tpu.yml); "
    "if it is, the account lacks a role in it, such as roles/tpu.admin"
)
_OF_A_PROJECT = re.compile(r"on resource \W*(?:[\w.]+/)?projects?[/ ]")
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


def error_body(answer: object) -> Mapping[str, Any]:
    """Give ``{code, message, status, details}`` of an error answer; empty for other shapes."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def _names_a_quota(error: Mapping[str, Any]) -> bool:
    """Tell a quota that is used up from asking too often: both come as 429 RESOURCE_EXHAUSTED.

    A used-up TPU quota reads ``Quota limit 'TPUV3sPodPerProjectPerZone…' has been exceeded. Limit:
    …``; a rate limit carries an ErrorInfo with the reason RATE_LIMIT_EXCEEDED.
    """
    details = error.get("details")
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, Mapping) and detail.get("reason") == "RATE_LIMIT_EXCEEDED":
            return False
    return bool(re.search(r"(?i)quota limit\s+['\"]", str(error.get("message", ""))))


def _older_reasons(error: Mapping[str, Any]) -> set[str]:
    """Give the reasons in ``errors``, the shape of Compute's and Cloud Storage's answers."""
    entries = error.get("errors")
    return {
        str(entry.get("reason"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping)
    }


def is_transient(status: int, answer: object) -> bool:
    """Tell whether asking again may help: 429 for a rate, 5xx; not 429 for a used-up quota.

    Compute says 403 for a rate, too.
    """
    error = error_body(answer)
    if status == 403:
        return bool(_older_reasons(error) & {"rateLimitExceeded", "userRateLimitExceeded"})
    return status in TRANSIENT_STATUSES and not _names_a_quota(error)


def from_http(status: int, answer: object, what: str) -> TpuApiError:
    """Make the typed error of an HTTP answer that is no success.

    ``what`` says what was asked for, as in "list the TPUs of zone us-central2-b".
    """
    error = error_body(answer)
    said = one_line(error.get("message") or f"HTTP {status}")
    if status == 401:
        return Unauthorized(f"can't {what}: the credentials are not accepted; {GET_CREDENTIALS}")
    if "quotaExceeded" in _older_reasons(error):
        return QuotaError(f"can't {what}: {said}")
    if status == 403:
        hint = f"; {CHECK_PROJECT}" if _OF_A_PROJECT.search(said) else ""
        return Forbidden(f"can't {what}: {said}{hint}")
    if status == 404:
        return NotFound(f"can't {what}: {said}")
    if status == 409:
        return AlreadyExists(f"can't {what}: {said}")
    if _names_a_quota(error):
        return QuotaError(f"can't {what}: {said}")
    if status in TRANSIENT_STATUSES:
        return Unavailable(
            f"can't {what}: the API keeps answering {status} ({said}); try again later"
        )
    return InvalidRequest(f"can't {what}: {said}")


def from_operation(error: Mapping[str, Any], what: str) -> TpuApiError:
    """Make the typed error of an operation's ``error``, a google.rpc.Status."""
    said = one_line(error.get("message") or f"error code {error.get('code')}")
    if error.get("code") == 8:
        if _names_a_quota(error):
            return QuotaError(f"can't {what}: {said}")
        return CapacityError(f"can't {what}: {said} (try another zone, or again later)")
    return OperationFailed(f"can't {what}: {said}")


def from_compute_operation(error: Mapping[str, Any], what: str) -> TpuApiError:
    """Make the typed error of a Compute operation's ``error``, ``{errors: [{code, message}]}``."""
    entries = error.get("errors")
    found = [entry for entry in entries if isinstance(entry, Mapping)] if entries else []
    codes = {str(entry.get("code")) for entry in found}
    words = "; ".join(str(entry.get("message") or entry.get("code")) for entry in found)
    said = f"can't {what}: {words or 'the operation failed without a word'}"
    if "QUOTA_EXCEEDED" in codes:
        return QuotaError(said)
    if any("RESOURCE_POOL_EXHAUSTED" in code for code in codes):
        return CapacityError(said)
    return OperationFailed(said)
