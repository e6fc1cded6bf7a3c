"""HTTP client for Google's JSON APIs: retries, paging, typed errors, operations."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from .session import ApiSettings

PAGE_SIZE = 500


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is tried, and how many seconds to wait between two tries.

    A request fails after ``tries`` tries. It fails earlier after ``connect_tries`` tries that did
    not reach the server, or ``silent_tries`` tries that got no response in ``request_timeout``.
    Each wait is random up to a limit that doubles, so that many clients do not retry at once.
    """

    tries: int = 10
    connect_tries: int = 4
    silent_tries: int = 3
    first_wait: float = 0.25
    longest_wait: float = 8.0
    request_timeout: float = 60.0

    def wait_after(self, attempt: int) -> float:
        """Return a random wait in seconds after try number ``attempt``, counted from 1."""
        return random.uniform(0, min(self.longest_wait, self.first_wait * 2 ** (attempt - 1)))  # noqa: S311


@dataclass(frozen=True)
class Polling:
    """The clock and the pauses of a polling loop.

    ``clock`` returns seconds since a fixed point and never goes back. Deadlines are times of this
    clock.
    """

    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def deadline_in(self, seconds: float) -> float:
        """Return the deadline that is ``seconds`` from now."""
        return self.clock() + seconds

    def pause(self, action: str, pauses: int, deadline: float) -> None:
        """Sleep between two polls, for 0.5 s at first and up to 10 s later.

        ``action`` describes the wait in the error, ``pauses`` is the number of earlier pauses, and
        ``deadline`` is when to stop waiting. Raises DeadlineExceeded at this time.
        """
        remaining = deadline - self.clock()
        if remaining <= 0:
            raise errors.DeadlineExceeded(
                f"can't {action} within the timeout; the cloud continues with it. Run the playbook "
                "again to keep waiting, or set a longer timeout (when creating or starting a TPU: "
                "-e create_seconds=SECONDS)"
            )
        self.sleep(min(remaining, 10.0, 0.5 * 1.3 ** min(pauses, 20)))


class GoogleHttp:
    """HTTP client for one API address. Thread-safe.

    ``open_session`` opens the HTTP session at the first request. Every failure raises a CloudError,
    whose one-line message names the request.
    """

    def __init__(
        self,
        address: str,
        open_session: Callable[[], Any],
        *,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address = address
        self._retry = retry or RetryPolicy()
        self._sleep = sleep
        self._open_session = open_session

    @cached_property
    def _session(self) -> Any:
        # Open the session at the first request, because this needs credentials. If the inventory is
        # in Ansible's cache, there is no request, and credentials are not needed.
        return self._open_session()

    def pages(
        self,
        path: str,
        action: str,
        *,
        size: str = "pageSize",
        params: Mapping[str, str] | None = None,
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the pages of a list, each a JSON object, following ``nextPageToken``.

        ``action`` describes the request in errors. ``size`` is the name of the query parameter by
        which this API limits the size of a page.
        """
        token, seen_tokens = "", set()
        base_params = {**(params or {}), size: str(PAGE_SIZE)}
        while True:
            params = base_params | ({"pageToken": token} if token else {})
            page = self.ask("GET", path, action, params=params)
            yield page
            token = page.get("nextPageToken") or ""
            if not token:
                return
            if not isinstance(token, str) or token in seen_tokens:
                raise errors.BadAnswer(
                    f"can't {action}: {self.address} returned the same page token twice"
                )
            seen_tokens.add(token)

    def ask(
        self,
        method: str,
        path: str,
        action: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        idempotent: bool = True,
        single_try: bool = False,
    ) -> Mapping[str, Any]:
        """Send a request, and return the JSON object in the response.

        ``body`` is the JSON object to send. The other arguments are those of ``send``.
        """
        reply = self.send(
            method,
            path,
            action,
            params=params,
            json=body,
            idempotent=idempotent,
            single_try=single_try,
        )
        return self.json_object(reply, action, may_be_empty=method != "GET")

    def json_object(
        self, reply: Any, action: str, *, may_be_empty: bool = False
    ) -> Mapping[str, Any]:
        """Return the JSON object in a response. Raises BadAnswer.

        ``action`` describes the request in the error. With ``may_be_empty``, a response without
        content counts as ``{}``. Responses to reads must have content, because Google returns even
        an empty list as ``{}``.
        """
        answer = {} if may_be_empty and not reply.content else _json(reply)
        if not isinstance(answer, Mapping):
            raise errors.BadAnswer(
                f"can't {action}: malformed response from {self.address} (not a JSON object). "
                "Check that this is the API's address, and that no proxy changes its responses"
            )
        return answer

    def send(
        self,
        method: str,
        path: str,
        action: str,
        *,
        idempotent: bool = True,
        single_try: bool = False,
        is_transfer: bool = False,
        **request: Any,
    ) -> Any:
        """Send a request, retry it after transient errors, and return the successful response.

        Args:
            method: HTTP method.
            path: URL path below the address.
            action: description of the request, for errors: ``read TPU demo (us-central2-b)``.
            idempotent: if false, never retry after a lost response, because the first try may have
                taken effect.
            single_try: never retry. Used for deletions by name: a newer resource may have the name
                when a retry is sent, so the caller checks the id before every try.
            is_transfer: whether the request or the response may be large. If so, the time limit
                applies to the wait for each part of the response, not to the whole response.
            request: ``params``, ``json``, ``data`` and ``headers`` of ``requests``.
        """
        from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
        from requests import exceptions as request_errors

        limit = self._retry.request_timeout
        tries = 1 if single_try else self._retry.tries
        connect_failures = timeouts = 0
        for attempt in range(1, tries + 1):
            is_last_try = attempt == tries
            try:
                reply = self._session.request(
                    method,
                    self.address + path,
                    timeout=limit,
                    max_allowed_time=None if is_transfer else limit,
                    allow_redirects=False,
                    **request,
                )
            except RefreshError as error:
                raise errors.Unauthorized(
                    f"can't {action}: no token for these credentials ({_summary(error)}); "
                    f"{errors.GET_CREDENTIALS}"
                ) from None
            except (
                TransportError,
                request_errors.ConnectionError,
                request_errors.Timeout,
                request_errors.ChunkedEncodingError,
            ) as error:
                never_connected = _never_connected(error)
                connect_failures += never_connected
                timeouts += not never_connected and isinstance(error, request_errors.Timeout)
                # After a TransportError, the request was not sent: fetching its token failed.
                was_sent = not never_connected and not isinstance(error, TransportError)
                if (
                    is_last_try
                    or connect_failures >= self._retry.connect_tries
                    or timeouts >= self._retry.silent_tries
                    or (was_sent and not idempotent)
                ):
                    raise errors.NoAnswer(
                        f"can't {action}: no answer from {self.address} ({network_error(error)})"
                    ) from None
                self._sleep(self._retry.wait_after(attempt))
                continue
            except (GoogleAuthError, request_errors.RequestException, ValueError) as error:
                raise errors.BadAnswer(
                    f"can't {action}: the request to {self.address} can't be sent, or its response "
                    f"can't be read ({type(error).__name__}). Check the address and the credentials"
                ) from None
            if 200 <= reply.status_code < 300:
                return reply
            answer = _json(reply)
            if is_last_try or not errors.is_transient(reply.status_code, answer):
                raise errors.from_http(reply.status_code, answer, action)
            if not idempotent and reply.status_code in (500, 502, 504):
                # A proxy may return these status codes although the server carried out the request.
                raise errors.NoAnswer(
                    f"can't {action}: the API returned HTTP {reply.status_code}, but may have "
                    "carried out the request. Run the playbook again to check"
                )
            retry_after = _retry_after(reply.headers.get("Retry-After"))
            self._sleep(max(self._retry.wait_after(attempt), retry_after))
        raise AssertionError("unreachable: the last try returns or raises")


class GoogleApi:
    """Client of one Google API for one project. Thread-safe. Methods raise only CloudError."""

    def __init__(
        self,
        settings: ApiSettings,
        *,
        retry: RetryPolicy | None = None,
        polling: Polling | None = None,
    ) -> None:
        self.settings = settings
        self.retry = retry
        self.polling = polling or Polling()
        self._http = GoogleHttp(
            self._address,
            partial(settings.open_session, self._address),
            retry=retry,
            sleep=self.polling.sleep,
        )

    @property
    def _address(self) -> str:
        """Base URL of the API."""
        raise NotImplementedError

    def wait(
        self,
        operation: Mapping[str, Any],
        action: str,
        deadline: float,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until an operation is done.

        ``action`` describes the operation in errors, ``deadline`` is when to stop waiting (a
        ``polling.clock`` time), and ``progress`` is called before each poll. Raises the error of
        the failed operation (such as CapacityError, QuotaError or OperationFailed), or
        DeadlineExceeded.
        """
        path = self._operation_path(operation, action)
        pauses = 0
        while path and operation.get("done") is not True and operation.get("status") != "DONE":
            self.polling.pause(action, pauses, deadline)
            progress()
            pauses += 1
            current = self._get(path, f"read the operation: {action}")
            if current is None:
                # The operation has ended: the API forgets finished operations. The caller reads
                # the resource, and so learns whether the operation succeeded.
                return
            operation = current
        error = operation.get("error")
        if isinstance(error, Mapping) and error:
            raise errors.from_operation(error, action)

    def _operation_path(self, operation: Mapping[str, Any], action: str) -> str:
        """Return the URL path from which to read an operation; empty if it has already ended."""
        raise NotImplementedError

    def _get(self, path: str, action: str) -> Mapping[str, Any] | None:
        try:
            return self._http.ask("GET", path, action)
        except errors.NotFound as error:
            _check_is_from_api(error)
            return None

    def _delete(
        self, path: str, action: str, params: Mapping[str, str] | None = None
    ) -> Mapping[str, Any] | None:
        """Request a deletion, without retries.

        Returns the operation, or None if the resource does not exist.
        """
        try:
            return self._http.ask("DELETE", path, action, params=params, single_try=True)
        except errors.NotFound as error:
            _check_is_from_api(error)
            return None


def _check_is_from_api(error: errors.NotFound) -> None:
    """Raise BadAnswer if a proxy may have sent the HTTP 404, so the resource may still exist."""
    if not error.is_from_api:
        raise errors.BadAnswer(
            f"{error}, but the API did not send this response; a proxy may have. Check the "
            "environment variable HTTPS_PROXY, and the endpoint in tpu.yml"
        ) from None


def list_of(answer: Mapping[str, Any], key: str, kind: type, action: str) -> list[Any]:
    """Return the list under ``key``, empty if absent. Raises BadAnswer for items of another type.

    ``kind`` is the type of the items, and ``action`` describes the request in the error.
    """
    items = answer.get(key) if isinstance(answer, Mapping) else None
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        raise errors.BadAnswer(f"can't {action}: malformed {key} in the response")
    return items


def network_error(error: BaseException) -> str:
    """Return why a request got no response: the operating system's message if there is one."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    names = {type(cause).__name__ for cause in _causes(error)}
    if any("Timeout" in name for name in names):
        return "timed out"
    if any("NameResolution" in name for name in names):
        return "no such host"
    return "connection broken"


def _json(reply: Any) -> object:
    try:
        return reply.json()
    except (ValueError, RecursionError):
        return None


def _retry_after(header: str | None) -> float:
    return min(float(header), 60.0) if header and header.isdecimal() else 0.0


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    visited: set[int] = set()
    queue: list[object] = [error]
    while queue:
        candidate = queue.pop(0)
        if isinstance(candidate, BaseException) and id(candidate) not in visited:
            visited.add(id(candidate))
            yield candidate
            queue += [
                *candidate.args,
                getattr(candidate, "reason", None),
                candidate.__cause__,
                candidate.__context__,
            ]


def _never_connected(error: BaseException) -> bool:
    from requests.exceptions import ConnectTimeout
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    kinds = (ConnectTimeout, ConnectTimeoutError, NewConnectionError)
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _summary(error: BaseException) -> str:
    return errors.one_line(error.args[0] if error.args else type(error).__name__)[:120]
