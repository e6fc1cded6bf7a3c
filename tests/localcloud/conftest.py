"""Fixtures for the tests on real machines."""

from pathlib import Path

import pytest

from tests.localcloud.real_machines import new_key


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    """The private key of the user ``tpu`` of all machines of a module's tests."""
    return new_key(tmp_path_factory.mktemp("ssh"))
