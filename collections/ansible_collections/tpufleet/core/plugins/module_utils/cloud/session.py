"""Settings and credentials for Google's APIs, and the HTTP sessions that use them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .errors import GET_CREDENTIALS, NotConfigured, Unauthorized
from .names import PROJECT

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
GOOGLE_TPU = "https://tpu.googleapis.com"
GOOGLE_COMPUTE = "https://compute.googleapis.com/compute/v1"
GOOGLE_STORAGE = "https://storage.googleapis.com"


@dataclass(frozen=True)
class ApiSettings:
    """API settings. Empty strings mean Google's endpoints and application-default credentials."""

    project: str
    endpoint: str = ""
    credentials_file: str = ""
    compute_endpoint: str = ""
    storage_endpoint: str = ""

    @classmethod
    def of(cls, api: Mapping[str, Any]) -> ApiSettings:
        """Parse ``api``, the inventory's variable ``tpu_api``. Raises NotConfigured."""
        values = {name: str(api.get(name) or "") for name in API_SETTINGS}
        addresses = {
            name: text.strip().rstrip("/") for name, text in values.items() if "endpoint" in name
        }
        settings = cls(**values | addresses)
        if not re.fullmatch(PROJECT, settings.project):
            raise NotConfigured(
                f"{settings.project!r} is not the id of a Google Cloud project. Set the project in "
                "inventory/gcp/tpu.yml (`gcloud projects list` shows the ids), or use the local "
                "cloud: -i inventory/local"
            )
        for option, value in addresses.items():
            url = urlsplit(value or GOOGLE_TPU)
            if url.scheme not in ("http", "https") or not url.hostname:
                raise NotConfigured(f"{option}: expected http(s)://host[:port] ({value!r})")
        return settings

    @property
    def address(self) -> str:
        """Base URL of the Cloud TPU API."""
        return self.endpoint or GOOGLE_TPU

    @property
    def compute_address(self) -> str:
        """Base URL of the Compute Engine API.

        It is ``compute_endpoint``, or if that is empty, ``/compute/v1`` below ``endpoint``, or if
        both are empty, Google's URL.
        """
        custom = f"{self.endpoint}/compute/v1" if self.endpoint else GOOGLE_COMPUTE
        return self.compute_endpoint or custom

    @property
    def storage_address(self) -> str:
        """Base URL of Cloud Storage or its emulator; empty if a local cloud has no storage."""
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").strip().rstrip("/")
        if emulator and "://" not in emulator:
            emulator = f"http://{emulator}"
        address = emulator or self.storage_endpoint
        return address or ("" if self.endpoint else GOOGLE_STORAGE)

    def open_session(self, address: str) -> AuthorizedSession:
        """Open a session for the API at ``address`` with the credentials file of these settings."""
        return open_session(address, self.credentials_file)


#: Names of the API settings, which are also options of the inventory plugin.
API_SETTINGS = tuple(field.name for field in fields(ApiSettings))


def is_loopback(url: str) -> bool:
    """Return whether the host of a URL is this computer (a loopback address)."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def open_session(address: str, credentials_file: str) -> AuthorizedSession:
    """Open a session with the given credentials file, or with Application Default Credentials.

    ``address`` is the base URL of the API. For an address on this computer, no proxy is used.
    Raises Unauthorized (no or invalid credentials), NotConfigured (google-auth is not installed).
    """
    try:
        from google.auth.transport.requests import AuthorizedSession, Request
        from requests import Session
    except ImportError as error:
        raise NotConfigured(
            f"the Python that runs Ansible has no {error.name or 'google-auth'}. Install "
            "google-auth and requests for this Python, or run: make env"
        ) from None
    token_session = Session()
    credentials = _from_file(Path(credentials_file)) if credentials_file else _application_default()
    if not is_loopback(address):
        return AuthorizedSession(credentials, auth_request=Request(token_session))
    session = AuthorizedSession(credentials, auth_request=_LoopbackOnly(Request(token_session)))
    # Ignore proxies of the environment: they can't reach services on this computer.
    session.trust_env = token_session.trust_env = False
    return session


def open_storage_session(address: str, credentials_file: str) -> AuthorizedSession:
    """Open a Cloud Storage session. Only requests to Google carry credentials.

    ``address`` is the base URL of Google's API or of an emulator. An empty ``credentials_file``
    means Application Default Credentials.
    """
    if address == GOOGLE_STORAGE:
        return open_session(address, credentials_file)
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession

    session = AuthorizedSession(AnonymousCredentials())
    session.trust_env = False  # an emulator is never behind a proxy
    return session


class _LoopbackOnly:
    """Transport for google-auth that refuses requests to other computers.

    For each new token, google-auth asks Google in which regions the token may be used. Such a
    request would send a local cloud's token to the internet.
    """

    def __init__(self, request: Any) -> None:
        self._request = request

    def __call__(self, url: str, *args: Any, **kwargs: Any) -> Any:
        if not is_loopback(url):
            from google.auth.exceptions import TransportError

            raise TransportError(
                f"{urlsplit(url).hostname}: request refused, because a local cloud's token must "
                "not leave this computer"
            )
        return self._request(url, *args, **kwargs)


def _from_file(path: Path) -> Any:
    from google.auth.exceptions import GoogleAuthError
    from google.oauth2 import credentials, service_account

    try:
        info = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise Unauthorized(
            f"can't read credentials_file {path}: {error.strerror}; {GET_CREDENTIALS}"
        ) from None
    except ValueError:
        info = None
    kind = info.get("type") if isinstance(info, dict) else None
    try:
        if kind == "service_account":
            return service_account.Credentials.from_service_account_info(info, scopes=SCOPES)
        if kind == "authorized_user":
            return credentials.Credentials.from_authorized_user_info(info, scopes=SCOPES)
    except (GoogleAuthError, ValueError):
        kind = f"invalid {kind}"  # the exception may quote the key, so it is not shown
    raise Unauthorized(
        f"credentials_file {path}: the type of its key is {kind or 'missing'}, not service_account "
        "or authorized_user. For other types leave credentials_file empty and set "
        "GOOGLE_APPLICATION_CREDENTIALS"
    )


def _application_default() -> Any:
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials, _project = google.auth.default(scopes=SCOPES)
    except (GoogleAuthError, OSError, ValueError):
        raise Unauthorized(f"no Google credentials found: {GET_CREDENTIALS}") from None
    return credentials
