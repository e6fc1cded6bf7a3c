"""What the tests of modules share."""

from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import python_env


@pytest.fixture(autouse=True)
def own_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test leave on this computer what it has seen of environments."""
    monkeypatch.setattr(python_env, "CHECKED", tmp_path / "seen-since-boot")
