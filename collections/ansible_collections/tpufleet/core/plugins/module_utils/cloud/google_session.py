"""Credentials: from a file, or Google's application-default ones, to a session that uses them."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .tpu_errors import GET_CREDENTIALS, NotConfigured, Unauthorized

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


def is_loopback(url: str) -> bool:
    """Tell whether the address is this computer's own."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def open_session(endpoint: str, credentials_file: str) -> AuthorizedSession:
    """Open a session with the credentials of the file, if empty the application-default ones.

    Raises Unauthorized (none found, or not usable) and NotConfigured (google-auth is not
    installed).
    """
    try:
        from google.auth.transport.requests import AuthorizedSession, Request
        from requests import Session
    except ImportError as missing:
        raise NotConfigured(
            f"the Python that Ansible runs on lacks {missing.name or 'google-auth'}: "
            "make env, or install google-auth and requests where ansible-playbook is"
        ) from None
    token_session = Session()
    credentials = _from_file(Path(credentials_file)) if credentials_file else _application_default()
    if not is_loopback(endpoint):
        return AuthorizedSession(credentials, auth_request=Request(token_session))
    session = AuthorizedSession(credentials, auth_request=_LoopbackOnly(Request(token_session)))
    # A proxy of the environment is for the way out, not for this computer itself.
    session.trust_env = token_session.trust_env = False
    return session


class _LoopbackOnly:
    """Lets google-auth ask only this computer.

    With every new token it also asks Google which regions the token is good in, and so would show
    a local cloud's token to the world.
    """

    def __init__(self, request: Any) -> None:
        self._request = request

    def __call__(self, url: str, *args: Any, **kwargs: Any) -> Any:
        if not is_loopback(url):
            from google.auth.exceptions import TransportError

            raise TransportError(f"{urlsplit(url).hostname} is not this computer")
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
        kind = f"broken {kind}"  # what exactly is broken may quote the key, so it isn't said
    raise Unauthorized(
        f"credentials_file {path} holds a {kind or 'thing of no known'} key, wanted is "
        "service_account or authorized_user; for other kinds leave credentials_file empty and set "
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
