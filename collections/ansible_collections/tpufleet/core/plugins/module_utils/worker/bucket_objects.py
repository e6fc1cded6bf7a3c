"""Access to objects in a Cloud Storage bucket with this worker's service account.

The parameter ``env`` of the functions has the trainer's environment variables. If these name an
emulator (STORAGE_EMULATOR_HOST), the emulator is used in place of Google's storage API.
JSON API: https://cloud.google.com/storage/docs/json_api/v1/objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

GOOGLE = "https://storage.googleapis.com"
TOKEN = "http://169.254.169.254/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105
SECONDS = 15
HTTP_NOT_FOUND = 404
HTTP_EMPTY = 416
"""HTTP status for a range request to an empty object (RFC 9110, Range Not Satisfiable)."""


class StorageApi(NamedTuple):
    """Base URL and request headers of the storage API; ``seconds`` is a request's time limit."""

    address: str
    headers: Mapping[str, str]
    seconds: float = SECONDS


def has_own_key(env: Mapping[str, str]) -> bool:
    """Return whether the trainer uses a key file instead of this worker's service account."""
    return bool(env.get("GOOGLE_APPLICATION_CREDENTIALS") and not env.get("STORAGE_EMULATOR_HOST"))


def storage_api(env: Mapping[str, str], seconds: float = SECONDS) -> StorageApi:
    """Return Google's storage API with a new access token of this worker's service account.

    An emulator needs no token. ``seconds`` is the time limit of each request. Raises OSError or
    ValueError if no token is issued.
    """
    emulator = env.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if emulator:
        return StorageApi(emulator if "://" in emulator else f"http://{emulator}", {}, seconds)
    headers = {"Authorization": f"Bearer {access_token(seconds)}"}
    return StorageApi(GOOGLE, headers, seconds)


def access_token(seconds: float = SECONDS) -> str:
    """Return a new access token of this worker's service account, from the metadata server.

    Raises OSError or ValueError if no token is issued.
    """
    response = json.loads(ask("GET", TOKEN, {"Metadata-Flavor": "Google"}, seconds=seconds))
    try:
        return str(response["access_token"])
    except (KeyError, TypeError):
        raise ValueError("the metadata server returned no access token") from None


def write_object(api: StorageApi, url: str, content: bytes) -> None:
    """Create or replace the object at a ``gs://`` URL. Raises OSError."""
    bucket, name = _bucket_and_name(url)
    upload_url = f"{api.address}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
    headers = {**api.headers, "Content-Type": "application/octet-stream"}
    ask("POST", upload_url, headers, content, api.seconds)


def delete_object(api: StorageApi, url: str) -> None:
    """Delete the object at a ``gs://`` URL. Raises OSError."""
    ask("DELETE", _address(api, url), api.headers, seconds=api.seconds)


def bucket_content(url: str, env: Mapping[str, str], limit: int) -> bytes | None:
    """Return the first ``limit`` bytes of the object at a ``gs://`` URL; None if missing or empty.

    Raises OSError, ValueError.
    """
    api = storage_api(env)
    headers = {**api.headers, "Range": f"bytes=0-{limit - 1}"}
    try:
        return ask("GET", f"{_address(api, url)}?alt=media", headers)[:limit]
    except OSError as error:
        if getattr(error, "code", None) in (HTTP_NOT_FOUND, HTTP_EMPTY):
            return None
        raise


def ask(
    method: str,
    url: str,
    headers: Mapping[str, str],
    data: bytes | None = None,
    seconds: float = SECONDS,
) -> bytes:
    """Send one HTTP request and return the content of the response. Raises OSError.

    ``data`` is the content of the request. Requests to ``http://`` URLs, which are those of the
    metadata server and of emulators, use no proxy.
    """
    import http.client  # imported here because it is slow and only buckets need it
    import urllib.request

    request = urllib.request.Request(url, data=data, headers=dict(headers), method=method)  # noqa: S310
    try:
        with _opener(url.startswith("https")).open(request, timeout=seconds) as response:
            return response.read()
    except http.client.HTTPException as error:
        raise OSError(f"malformed response ({type(error).__name__})") from None


@lru_cache
def _opener(is_proxied: bool) -> OpenerDirector:
    """Return a urllib opener. It is cached, because each new opener loads the CA certificates.

    Unless ``is_proxied``, the opener ignores the proxies in the environment variables.
    """
    import urllib.request

    handlers = [] if is_proxied else [urllib.request.ProxyHandler({})]
    return urllib.request.build_opener(*handlers)


def request_failure(error: OSError) -> str:
    """Return the cause of a failed request, on one line."""
    if hasattr(error, "code"):  # only an urllib.error.HTTPError has a code
        try:
            message = json.loads(error.read())["error"]["message"]
        except (OSError, ValueError, KeyError, TypeError):
            message = error.reason
        return f"HTTP {error.code}, {' '.join(str(message).split())}"
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason)


def _bucket_and_name(url: str) -> tuple[str, str]:
    """Return the bucket and the object's name of a ``gs://`` URL, quoted for a request."""
    bucket, _, name = url[len("gs://") :].partition("/")
    return quote(bucket, safe=""), quote(name, safe="")


def _address(api: StorageApi, url: str) -> str:
    bucket, name = _bucket_and_name(url)
    return f"{api.address}/storage/v1/b/{bucket}/o/{name}"
