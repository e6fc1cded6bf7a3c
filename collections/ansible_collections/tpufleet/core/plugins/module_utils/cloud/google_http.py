"""JSON over HTTP with Google's credentials: asks again where that may help, follows pages.

Every failure is a TpuApiError of one line that says what was wanted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import tpu_errors as errors
from .google_session import open_session

PAGE_SIZE = 500


@dataclass(frozen=True)
class Patience:
    """How often, and how long in between (seconds), to ask again.

    Each wait is random up to a limit that doubles, so that many clients don't come back at once.
    ``connects`` counts the tries for a server that can't be reached at all.
    """

    tries: int = 10
    connects: int = 4
    first_wait: float = 0.25
    longest_wait: float = 8.0
    request_timeout: float = 60.0

    def wait_after(self, tried: int) -> float:
        """Give the wait after the so-many-th try, counted from 1."""
        return random.uniform(0, min(self.longest_wait, self.first_wait * 2 ** (tried - 1)))  # noqa: S311


class GoogleHttp:
    """Requests to one endpoint with one key. Safe for several threads."""

    def __init__(
        self,
        address: str,
        credentials_file: str,
        *,
        patience: Patience,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address = address
        self._patience = patience
        self._sleep = sleep
        self._session = open_session(address, credentials_file)

    def pages(
        self,
        path: str,
        what: str,
        *,
        size: str = "pageSize",
        params: Mapping[str, str] | None = None,
    ) -> Iterator[Mapping[str, Any]]:
        """Give the pages of a list, each a JSON object, following ``nextPageToken``.

        ``size`` is what this API calls a page's size.
        """
        token, seen = "", set()
        asked = {**(params or {}), size: str(PAGE_SIZE)}
        while True:
            params = asked | ({"pageToken": token} if token else {})
            page = self.ask("GET", path, what, params=params)
            yield page
            token = page.get("nextPageToken") or ""
            if not token:
                return
            if not isinstance(token, str) or token in seen:
                raise errors.BadAnswer(
                    f"can't {what}: {self.address} sends the same page again and again"
                )
            seen.add(token)

    def ask(
        self,
        method: str,
        path: str,
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        repeatable: bool = True,
        once: bool = False,
    ) -> Mapping[str, Any]:
        """Send a request, retry it where that may help, and return the answer's JSON object.

        Not ``repeatable``: do not retry after a lost answer, because the first try may have worked.
        ``once``: never retry. For deletions by name: the name may be another resource's by the
        time of a retry, so the caller checks the id before every try.
        """
        from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
        from requests import exceptions as lost

        url = self.address + path
        limit = self._patience.request_timeout
        tries = 1 if once else self._patience.tries
        for tried in range(1, tries + 1):
            last = tried == tries
            try:
                reply = self._session.request(
                    method,
                    url,
                    params=params,
                    json=body,
                    timeout=limit,
                    max_allowed_time=limit,
                    allow_redirects=False,
                )
            except RefreshError as refused:
                raise errors.Unauthorized(
                    f"can't {what}: no token for these credentials ({_first_words(refused)}); "
                    f"{errors.GET_CREDENTIALS}"
                ) from None
            except (
                TransportError,
                lost.ConnectionError,
                lost.Timeout,
                lost.ChunkedEncodingError,
            ) as broken:
                unreached = _never_connected(broken)
                # TransportError is the way to the token: the request itself never left.
                sent = not unreached and not isinstance(broken, TransportError)
                if (
                    last
                    or (unreached and tried >= self._patience.connects)
                    or (sent and not repeatable)
                ):
                    raise errors.NoAnswer(
                        f"can't {what}: no answer from {self.address} ({_network_words(broken)})"
                    ) from None
                self._sleep(self._patience.wait_after(tried))
                continue
            except (GoogleAuthError, lost.RequestException, ValueError) as wrong:
                raise errors.BadAnswer(
                    f"can't {what}: {type(wrong).__name__} at {self.address}"
                ) from None
            answer = _json(reply)
            if 200 <= reply.status_code < 300:
                if not isinstance(answer, Mapping):
                    raise errors.BadAnswer(
                        f"can't {what}: {self.address} answers, but not as a Cloud TPU API"
                    )
                return answer
            if last or not errors.is_transient(reply.status_code, answer):
                raise errors.from_http(reply.status_code, answer, what)
            if not repeatable and reply.status_code in (500, 502, 504):
                # These may come from a proxy in front of a server that did the work.
                raise errors.NoAnswer(f"can't {what}: the API answered {reply.status_code}")
            self._sleep(
                max(
                    self._patience.wait_after(tried), _retry_after(reply.headers.get("Retry-After"))
                )
            )
        raise AssertionError("the last try always returns or raises")


def list_of(answer: Mapping[str, Any], key: str, kind: type, what: str) -> list[Any]:
    """Give a list out of an answer, empty if it is absent; all of one kind, else BadAnswer."""
    items = answer.get(key) if isinstance(answer, Mapping) else None
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        raise errors.BadAnswer(f"can't {what}: the answer's {key} is of no known shape")
    return items


def _json(reply: Any) -> object:
    if not reply.content:
        return {}
    try:
        return reply.json()
    except (ValueError, RecursionError):
        return None


def _retry_after(header: str | None) -> float:
    return min(float(header), 60.0) if header and header.isdecimal() else 0.0


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    queue: list[object] = [error]
    while queue:
        found = queue.pop(0)
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            queue += [
                *found.args,
                getattr(found, "reason", None),
                found.__cause__,
                found.__context__,
            ]


def _never_connected(error: BaseException) -> bool:
    from requests.exceptions import ConnectTimeout
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    kinds = (ConnectTimeout, ConnectTimeoutError, NewConnectionError)
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _network_words(error: BaseException) -> str:
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    names = {type(cause).__name__ for cause in _causes(error)}
    if any("Timeout" in name for name in names):
        return "timed out"
    if any("NameResolution" in name for name in names):
        return "no such host"
    return "connection broken"


def _first_words(error: BaseException) -> str:
    return errors.one_line(error.args[0] if error.args else type(error).__name__)[:120]
