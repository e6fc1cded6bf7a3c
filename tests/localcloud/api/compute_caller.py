"""A client of the local cloud's Compute API."""

from typing import Any

from tests.localcloud.api.local_api import PROJECT, LocalApi

HERE = f"/compute/v1/projects/{PROJECT}"


class Compute:
    """A client of the Compute API with the credentials of ``LocalApi``."""

    def __init__(self, api: LocalApi) -> None:
        self.api = api

    def call(self, verb: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send one request for a path below the project."""
        return self.api.call(verb, f"{HERE}/{path}".rstrip("/"), body, **query)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        response = self.call("GET", path, **query)
        assert response.status_code == 200, response.text
        return response.json()

    def done(self, verb: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """Send a request, wait until its operation has ended, and return the operation."""
        response = self.call(verb, path, body, **query)
        assert response.status_code == 200, response.text
        link = response.json()["selfLink"].removeprefix(self.api.endpoint)
        ended = self.api.call("POST", f"{link}/wait")
        assert ended.json()["status"] == "DONE", ended.text
        return ended.json()

    def refused(self, verb: str, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
        """Send a request that must fail; return the status code and the reason."""
        error = self.api.refused(verb, f"{HERE}/{path}".rstrip("/"), body, **query)
        return error["code"], error["errors"][0]["reason"]

    def names(self, path: str, **query: Any) -> list[str]:
        """Return the names on all pages of a list."""
        names, token = [], None
        while token != "":
            pages = {**query, **({"pageToken": token} if token else {})}
            response = self.get(path, **pages)
            names += [item["name"] for item in response.get("items", [])]
            token = response.get("nextPageToken", "")
        return names
