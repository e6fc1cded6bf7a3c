"""The emulated bucket for the trainer's clients: gcsfs and TensorStore."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.emulated_storage import BUCKET, emulated_storage

NAME = BUCKET


@contextmanager
def emulated_bucket() -> Iterator[dict[str, str]]:
    """Serve an empty gs://NAME on loopback; yield the environment variables for clients."""
    with emulated_storage() as address:
        yield {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "anything",
        }
