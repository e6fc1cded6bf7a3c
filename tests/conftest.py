"""Settings and fixtures for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.localcloud.api.local_api import LocalApi

# Hypothesis checks neither how long an example takes nor how long its generation takes, because a
# busy machine would exceed the limits.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
# `make mutants` needs only to know whether a test fails, so do not search for the smallest example.
settings.register_profile(
    "mutants", deadline=None, database=None, phases=[Phase.generate], max_examples=10
)


@pytest.fixture
def local_api(tmp_path: Path) -> Iterator[LocalApi]:
    """A local cloud's API on a free port of loopback, with machines in memory."""
    api = LocalApi(tmp_path / "cloud")
    yield api
    api.halt()
