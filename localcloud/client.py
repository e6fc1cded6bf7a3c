"""Ask a running cloud, as any client does: over HTTP, with a token for its service account."""

import json
from urllib.parse import urlsplit

import requests
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from google.oauth2 import service_account

from localcloud import settings
from localcloud.failure import CloudError
from localcloud.place import Place

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TIMEOUT_S = 60


def ask(place: Place, method: str, path: str, body: object = None) -> dict:
    """Send one request to the cloud at ``place`` and give the answer's JSON object.

    Raises CloudError with the API's own words if it refuses, or if it does not answer.
    """
    endpoint = settings.read(place).endpoint
    try:
        credentials = service_account.Credentials.from_service_account_file(
            place.directory / "service-account.json", scopes=[SCOPE]
        )
        session = AuthorizedSession(credentials, auth_request=_LoopbackRequest())
        # The endpoint is on loopback: a proxy of the environment has no business with it.
        session.trust_env = False
        answer = session.request(method, endpoint + path, json=body, timeout=TIMEOUT_S)
    except (OSError, GoogleAuthError, requests.RequestException) as error:
        raise CloudError(
            f"local cloud {place.name!r} does not answer on {endpoint} "
            f"({type(error).__name__}). Start it: {place.command('up')}"
        ) from error
    if not answer.ok:
        raise CloudError(_reason(answer))
    return answer.json() if answer.content else {}


class _LoopbackRequest(Request):
    """Keeps a local cloud's token on this host.

    With every new token google-auth also asks Google in which regions the token may be used.
    """

    def __call__(self, url: str, *arguments: object, **options: object) -> object:
        """Send the request, if it goes to this host."""
        if urlsplit(url).hostname != "127.0.0.1":
            raise TransportError(f"{url} is not on this host")
        return super().__call__(url, *arguments, **options)


def _reason(answer: requests.Response) -> str:
    try:
        return answer.json()["error"]["message"]
    except (json.JSONDecodeError, LookupError, TypeError):
        return f"{answer.status_code} {answer.reason}"
