"""Errors of the API, in the JSON format of Google's APIs.

The format and the pairs of HTTP code and status are those of AIP-193 and google.rpc.Code
(https://google.aip.dev/193).
"""

from collections.abc import Mapping, Sequence
from typing import Any

HTTP_STATUS: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    411: "INVALID_ARGUMENT",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

# Values of google.rpc.Code, used as the ``error.code`` of operations.
RPC_CANCELLED = 1
RPC_INVALID_ARGUMENT = 3
RPC_DEADLINE_EXCEEDED = 4
RPC_NOT_FOUND = 5
RPC_ALREADY_EXISTS = 6
RPC_RESOURCE_EXHAUSTED = 8
RPC_FAILED_PRECONDITION = 9
RPC_ABORTED = 10
RPC_INTERNAL = 13
_RPC_CODES: Mapping[str, int] = {
    "INVALID_ARGUMENT": RPC_INVALID_ARGUMENT,
    "NOT_FOUND": RPC_NOT_FOUND,
    "ALREADY_EXISTS": RPC_ALREADY_EXISTS,
    "FAILED_PRECONDITION": RPC_FAILED_PRECONDITION,
}

_TYPE = "type.googleapis.com/google.rpc."
_SERVICE = {"service": "tpu.googleapis.com"}


class ApiError(Exception):
    """An error of the API: HTTP code, message, status and google.rpc details."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        status: str = "",
        details: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or HTTP_STATUS.get(code, "UNKNOWN")
        self.details = tuple(details)

    @property
    def rpc_code(self) -> int:
        """The google.rpc.Code for this error, used in failed operations."""
        return _RPC_CODES.get(self.status, RPC_INTERNAL)

    def body(self) -> dict[str, Any]:
        """Return the response's JSON: ``{"error": {code, message, status[, details]}}``."""
        details = {"details": self.details} if self.details else {}
        error = {"code": self.code, "message": self.message, "status": self.status}
        return {"error": {**error, **details}}


def invalid(field: str, message: str) -> ApiError:
    """Return the error (400, with google.rpc.BadRequest) for an invalid field."""
    violation = {"field": field, "description": message}
    detail = {"@type": f"{_TYPE}BadRequest", "fieldViolations": [violation]}
    return ApiError(400, message, details=[detail])


def failed_precondition(message: str) -> ApiError:
    """Return the error (400) for a request that the resource's state does not allow."""
    return ApiError(400, message, status="FAILED_PRECONDITION")


def not_found(resource: str) -> ApiError:
    """Return the error (404) for a resource that does not exist."""
    return ApiError(404, f"Resource '{resource}' was not found")


def already_exists(resource: str) -> ApiError:
    """Return the error (409) for creating a resource that already exists."""
    detail = {"@type": f"{_TYPE}ResourceInfo", "resourceName": resource}
    return ApiError(409, f"Resource '{resource}' already exists", details=[detail])


def permission_denied(permission: str, resource: str) -> ApiError:
    """Return the error (403) for a resource of another project, whether or not it exists."""
    metadata = {"permission": permission, "resource": resource}
    detail = _info("IAM_PERMISSION_DENIED", metadata, "iam.googleapis.com")
    message = f"Permission '{permission}' denied on resource '{resource}' (or it may not exist)."
    return ApiError(403, message, details=[detail])


def unauthenticated(reason: str, message: str) -> ApiError:
    """Return the error (401) for a missing or bad token; ``reason`` is a google.api.ErrorReason."""
    return ApiError(401, message, details=[_info(reason, _SERVICE)])


def rate_limited(message: str) -> ApiError:
    """Return the error (429) for too many requests; a retry can succeed."""
    return ApiError(429, message, details=[_info("RATE_LIMIT_EXCEEDED", _SERVICE)])


def quota_exceeded(limit: str, consumer: str, message: str) -> ApiError:
    """Return the error (429) for an exceeded quota; retries fail until resources are deleted.

    ``limit`` is the quota's name, ``consumer`` is ``projects/PROJECT``.
    """
    subject = consumer.replace("projects/", "project:")
    violation = {"subject": subject, "description": message}
    failure = {"@type": f"{_TYPE}QuotaFailure", "violations": [violation]}
    metadata = {**_SERVICE, "consumer": consumer, "quota_limit": limit}
    info = _info("RESOURCE_QUOTA_EXCEEDED", metadata)
    return ApiError(429, message, details=[failure, info])


def _info(
    reason: str, metadata: Mapping[str, str], domain: str = "googleapis.com"
) -> Mapping[str, Any]:
    info = {"reason": reason, "domain": domain, "metadata": metadata}
    return {"@type": f"{_TYPE}ErrorInfo", **info}
