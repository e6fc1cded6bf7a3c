"""Fixture with a controller, for tests of passes."""

import pytest

from tests.collections.runs.passes import Controller
from tests.collections.runs.records import keep_release


@pytest.fixture
def controller(tmp_path) -> Controller:
    return Controller(tmp_path / "fleet", keep_release(tmp_path / "kept"))
