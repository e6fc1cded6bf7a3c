"""The local cloud of a test file or benchmark: a new one, or one that is already running."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from localcloud import cloud
from localcloud.choices import Options
from localcloud.place import Place

EXISTING = os.environ.get("TPUFLEET_TEST_CLOUD", "")
"""Name of an existing cloud that tests use and leave up. If empty, each file starts a new cloud."""


@contextmanager
def own_cloud(name: str, **options: Any) -> Iterator[Place]:
    """Start a local cloud and yield it; take it down at the end, even after an error.

    ``name`` becomes part of the cloud's name, and ``options`` are the fields of
    ``localcloud.choices.Options``.
    """
    cloud.find_system_tools()
    place = Place.of(f"test-{name}-{os.getpid()}")
    try:
        cloud.up(place, Options(**options), say=print)
        yield place
    finally:
        cloud.down(place, say=print)


def own_or_existing_cloud(
    name: str, existing: str = EXISTING, **options: Any
) -> AbstractContextManager[Place]:
    """Return the cloud named ``existing``; if the name is empty, a new one (``own_cloud``).

    An existing cloud is not taken down at the end, and ``options`` do not apply to it.
    """
    return nullcontext(Place.of(existing)) if existing else own_cloud(name, **options)
