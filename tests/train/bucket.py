"""An emulated Cloud Storage bucket for gcsfs and TensorStore, the clients that the trainer uses."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.emulated_storage import BUCKET, emulated_storage

NAME = BUCKET


@contextmanager
def emulated_bucket() -> Iterator[dict[str, str]]:
    """Serve an empty bucket, NAME, on loopback.

    Yields the environment variables that make gcsfs and TensorStore use it.
    """
    with emulated_storage() as address:
        yield {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "anything",
        }
