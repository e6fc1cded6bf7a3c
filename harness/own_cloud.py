"""The local cloud of a test file or benchmark: a new one, or one that is already running."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from localcloud import cloud
from localcloud.choices import Options
from localcloud.local_cloud import LocalCloud

EXISTING = os.environ.get("TPUFLEET_TEST_CLOUD", "")
"""Name of an existing cloud that tests use and do not remove; if empty, each file starts one."""


@contextmanager
def own_cloud(name: str, **options: Any) -> Iterator[LocalCloud]:
    """Start a local cloud and yield it; take it down at the end, even after an error.

    ``name`` becomes part of the cloud's name, and ``options`` are the fields of
    ``localcloud.choices.Options``.
    """
    cloud.find_system_tools()
    local_cloud = LocalCloud.of(f"test-{name}-{os.getpid()}")
    try:
        cloud.up(local_cloud, Options(**options), report=print)
        yield local_cloud
    finally:
        cloud.down(local_cloud, report=print)


def own_or_existing_cloud(
    name: str, existing: str = EXISTING, **options: Any
) -> AbstractContextManager[LocalCloud]:
    """Return the cloud named ``existing``; if the name is empty, a new one (``own_cloud``).

    An existing cloud is not taken down at the end, and ``options`` do not apply to it.
    """
    return nullcontext(LocalCloud.of(existing)) if existing else own_cloud(name, **options)
