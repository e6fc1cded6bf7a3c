"""Errors of the Compute API, in the shape of Google's older APIs.

``{"error": {code, message, errors: [{domain, reason, message}]}}``; programs use the reason
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
    """An error of Compute with its reason."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(code, message)
        self.reason = reason

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON."""
        return {"error": _error(self.code, self.reason, self.message)}


def body_of(error: ApiError) -> dict[str, Any]:
    """Return the JSON of any error in Compute's shape."""
    if isinstance(error, ComputeError):
        return error.body()
    reason = _REASONS.get(error.code, "backendError")
    return {"error": {**_error(error.code, reason, error.message), "status": error.status}}


def _error(code: int, reason: str, message: str) -> dict[str, Any]:
    domain = "usageLimits" if reason == "rateLimitExceeded" else "global"
    entry = {"domain": domain, "reason": reason, "message": message}
    return {"code": code, "message": message, "errors": [entry]}


def bad_value(field: str, value: object, why: str) -> ComputeError:
    """Return the error for an invalid value of a field."""
    message = f"Invalid value for field 'resource.{field}': '{value}'. {why}"
    return ComputeError(400, "invalid", message)


def required(field: str) -> ComputeError:
    """Return the error for a missing field."""
    return ComputeError(400, "required", f"Required field 'resource.{field}' not specified")


def missing(resource: str) -> ComputeError:
    """Return the error for a resource that does not exist."""
    return ComputeError(404, "notFound", f"The resource '{resource}' was not found")


def taken(resource: str) -> ComputeError:
    """Return the error for a name that is taken."""
    return ComputeError(409, "alreadyExists", f"The resource '{resource}' already exists")


def in_use(resource: str, users: str) -> ComputeError:
    """Return the error for deleting a resource that others use."""
    message = f"The resource '{resource}' is already being used by '{users}'"
    return ComputeError(400, "resourceInUseByAnotherResource", message)
