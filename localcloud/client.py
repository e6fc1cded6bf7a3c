"""HTTP client for a running local cloud, authenticated as the cloud's service account."""

import json
from urllib.parse import urlsplit

import requests
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from google.oauth2 import service_account

from localcloud import settings
from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TIMEOUT_S = 60


def request(cloud: LocalCloud, method: str, path: str, body: object = None) -> dict:
    """Send one request to a running cloud and return the JSON object in the response.

    Raises CloudError if the API returns an error (with the API's message) or does not respond.
    """
    endpoint = settings.read(cloud).endpoint
    try:
        credentials = service_account.Credentials.from_service_account_file(
            cloud.directory / "service-account.json", scopes=[SCOPE]
        )
        session = AuthorizedSession(credentials, auth_request=_LoopbackRequest())
        # The endpoint is on loopback: ignore proxies from the environment.
        session.trust_env = False
        response = session.request(method, endpoint + path, json=body, timeout=TIMEOUT_S)
    except (OSError, GoogleAuthError, requests.RequestException) as error:
        raise CloudError(
            f"local cloud {cloud.name!r} does not answer on {endpoint} "
            f"({type(error).__name__}). Start it: {cloud.command('up')}"
        ) from error
    if not response.ok:
        raise CloudError(_reason(response))
    return response.json() if response.content else {}


class _LoopbackRequest(Request):
    """google-auth transport that refuses requests to other hosts.

    Otherwise, google-auth would send each new token to Google, to look up the account's regions.
    """

    def __call__(self, url: str, *arguments: object, **options: object) -> object:
        """Send a request to 127.0.0.1; raise TransportError for any other host."""
        if urlsplit(url).hostname != "127.0.0.1":
            raise TransportError(f"{url}: not requested, because only 127.0.0.1 is allowed")
        return super().__call__(url, *arguments, **options)


def _reason(response: requests.Response) -> str:
    try:
        return response.json()["error"]["message"]
    except (json.JSONDecodeError, LookupError, TypeError):
        return f"{response.status_code} {response.reason}"
