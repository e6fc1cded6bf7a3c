"""Errors of the Compute API, in the JSON format of Google's older APIs.

The format is ``{"error": {code, message, errors: [{domain, reason, message}]}}``. Clients tell
errors apart by their reason
(https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-api-errors).
"""

from collections.abc import Mapping
from typing import Any

from localcloud.api.errors import ApiError

_REASONS: Mapping[int, str] = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "alreadyExists",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "internalError",
    503: "backendError",
}


class ComputeError(ApiError):
    """An error of the Compute API: HTTP code, reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(code, message)
        self.reason = reason


def body_of(error: ApiError) -> dict[str, Any]:
    """Return the JSON of any API error in the Compute API's format."""
    status = {}
    if isinstance(error, ComputeError):
        reason = error.reason
    else:
        reason, status = _REASONS.get(error.code, "backendError"), {"status": error.status}
    domain = "usageLimits" if reason == "rateLimitExceeded" else "global"
    entry = {"domain": domain, "reason": reason, "message": error.message}
    return {"error": {"code": error.code, "message": error.message, "errors": [entry], **status}}


def bad_value(field: str, value: object, reason: str) -> ComputeError:
    """Return the error (400) for an invalid value of a field; its message ends with ``reason``."""
    message = f"Invalid value for field 'resource.{field}': '{value}'. {reason}"
    return ComputeError(400, "invalid", message)


def required(field: str) -> ComputeError:
    """Return the error (400) for a missing field."""
    return ComputeError(400, "required", f"Required field 'resource.{field}' not specified")


def missing(resource: str) -> ComputeError:
    """Return the error (404) for a resource that does not exist."""
    return ComputeError(404, "notFound", f"The resource '{resource}' was not found")


def already_exists(resource: str) -> ComputeError:
    """Return the error (409) for creating a resource that already exists."""
    return ComputeError(409, "alreadyExists", f"The resource '{resource}' already exists")


def in_use(resource: str, users: str) -> ComputeError:
    """Return the error (400) for deleting a resource that ``users`` still use."""
    message = f"The resource '{resource}' is already being used by '{users}'"
    return ComputeError(400, "resourceInUseByAnotherResource", message)
