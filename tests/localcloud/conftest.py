"""Fixtures for the tests on real machines."""

from pathlib import Path

import pytest

from tests.localcloud.real_machines import new_key


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    """The private key with which a module's tests log in to machines as the user ``tpu``."""
    return new_key(tmp_path_factory.mktemp("ssh"))
