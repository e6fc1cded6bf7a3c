"""Fixtures for the tests of the API, of its clients, and on real machines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.localcloud.api.local_api import LocalApi
from tests.localcloud.real_machines import new_key


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory) -> Iterator[LocalApi]:
    """A local cloud's API that a module's tests share."""
    api = LocalApi(tmp_path_factory.mktemp("shared"))
    yield api
    api.halt()


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    """The private key with which a module's tests log in to machines as the user ``tpu``."""
    return new_key(tmp_path_factory.mktemp("ssh"))
