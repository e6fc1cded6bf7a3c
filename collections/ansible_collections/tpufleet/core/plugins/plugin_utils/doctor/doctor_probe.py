"""Single requests to Google's APIs, without retries so that every error is reported."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from ...module_utils.cloud import errors
from ...module_utils.cloud.http import network_error

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

TIMEOUT_S = 20
#: Reason of an API that is not enabled, by the field of the error body that has it.
_DISABLED_REASONS = {"details": "SERVICE_DISABLED", "errors": "accessNotConfigured"}


@dataclass(frozen=True)
class Reply:
    """An HTTP response: its status, its JSON object, and the clock skew.

    ``skew_s`` is how many seconds this computer's clock is ahead of the Date header; None without
    that header.
    """

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    skew_s: float | None = None

    @property
    def message(self) -> str:
        """The error message of the API."""
        error = errors.error_body(self.body)
        return errors.one_line(error.get("message") or f"HTTP {self.status}")

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in errors.TRANSIENT_STATUSES

    @property
    def is_disabled(self) -> bool:
        """Whether this is the error that the API is disabled in the project.

        Newer APIs report an ErrorInfo with reason SERVICE_DISABLED
        (https://cloud.google.com/apis/design/errors), older APIs accessNotConfigured.
        """
        error = errors.error_body(self.body)
        for field_name, reason in _DISABLED_REASONS.items():
            entries = error.get(field_name)
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, Mapping) and entry.get("reason") == reason:
                    return True
        return False


def get(session: AuthorizedSession, url: str, params: Mapping[str, Any] | None = None) -> Reply:
    """Send one GET request and return the response, whatever its status.

    Raises Unauthorized if the credentials get no access token, NoAnswer if no response arrives.
    """
    from google.auth.exceptions import GoogleAuthError, RefreshError
    from requests import exceptions as request_errors

    started_at = time.time()
    try:
        reply = session.request("GET", url, params=params, timeout=TIMEOUT_S, allow_redirects=False)
    except RefreshError as error:
        reason = error.args[0] if error.args else "refused"
        raise errors.Unauthorized(f"no access token for the credentials: {reason}") from None
    except (GoogleAuthError, request_errors.RequestException, ValueError) as error:
        raise errors.NoAnswer(
            f"no answer from {url.split('?')[0]} ({network_error(error)})"
        ) from None
    try:
        body = reply.json() if reply.content else {}
    except ValueError:
        body = {}
    midpoint = (started_at + time.time()) / 2
    return Reply(
        reply.status_code,
        body if isinstance(body, Mapping) else {},
        _skew(reply.headers.get("Date"), midpoint),
    )


def _skew(date: str | None, now: float) -> float | None:
    try:
        # The Date header is truncated to whole seconds, so it is 0.5 s early on average.
        return now - parsedate_to_datetime(date or "").timestamp() - 0.5
    except (TypeError, ValueError):
        return None
