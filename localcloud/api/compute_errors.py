"""What the Compute API says when it refuses, in the shape that it and other older APIs of Google's have.

``{"error": {code, message, errors: [{domain, reason, message}]}}``, where the reason is what a
program goes by (https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-api-errors).
"""  # noqa: E501  (a title is one line)

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
    """A request that Compute refuses, with its reason."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(code, message)
        self.reason = reason

    def body(self) -> dict[str, Any]:
        """Give the answer's JSON."""
        return {"error": _error(self.code, self.reason, self.message)}


def body_of(error: ApiError) -> dict[str, Any]:
    """Give the JSON by which Compute answers what the front that all APIs share refuses."""
    if isinstance(error, ComputeError):
        return error.body()
    reason = _REASONS.get(error.code, "backendError")
    return {"error": {**_error(error.code, reason, error.message), "status": error.status}}


def _error(code: int, reason: str, message: str) -> dict[str, Any]:
    domain = "usageLimits" if reason == "rateLimitExceeded" else "global"
    entry = {"domain": domain, "reason": reason, "message": message}
    return {"code": code, "message": message, "errors": [entry]}


def bad_value(field: str, value: object, why: str) -> ComputeError:
    """Refuse the value of one field."""
    said = f"Invalid value for field 'resource.{field}': '{value}'. {why}"
    return ComputeError(400, "invalid", said)


def required(field: str) -> ComputeError:
    """Refuse a request that lacks a field."""
    return ComputeError(400, "required", f"Required field 'resource.{field}' not specified")


def missing(resource: str) -> ComputeError:
    """Say that the named resource is not there."""
    return ComputeError(404, "notFound", f"The resource '{resource}' was not found")


def taken(resource: str) -> ComputeError:
    """Say that the name is taken."""
    return ComputeError(409, "alreadyExists", f"The resource '{resource}' already exists")


def in_use(resource: str, users: str) -> ComputeError:
    """Refuse to remove what others use."""
    said = f"The resource '{resource}' is already being used by '{users}'"
    return ComputeError(400, "resourceInUseByAnotherResource", said)
