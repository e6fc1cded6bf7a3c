"""The fleet's key pair: created once and completely, and never overwritten."""

import subprocess
from pathlib import Path

import pytest

from tests.collections.running_modules import run_module


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "ssh/id_ed25519"


def public_of(private: Path) -> str:
    result = subprocess.run(
        ["ssh-keygen", "-y", "-f", private], capture_output=True, text=True, check=True
    )
    return result.stdout.split()[1]


def test_a_key_pair_is_made_once(key):
    first, second = (run_module("ssh_key", path=str(key)) for _ in range(2))
    assert (first["changed"], second["changed"]) == (True, False)
    assert public_of(key) == key.with_name("id_ed25519.pub").read_text().split()[1]
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(file.name for file in key.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_check_mode_creates_nothing(key):
    assert run_module("ssh_key", path=str(key), check=True)["changed"]
    assert not key.parent.exists()


def test_a_missing_public_key_is_created_from_the_private_key(key):
    run_module("ssh_key", path=str(key))
    before = key.read_bytes()
    key.with_name("id_ed25519.pub").unlink()
    assert run_module("ssh_key", path=str(key))["changed"]
    assert key.read_bytes() == before
    assert key.with_name("id_ed25519.pub").read_text().split()[1] == public_of(key)


def test_a_public_key_without_its_private_key_is_replaced_by_a_new_pair(key):
    key.parent.mkdir()
    key.with_name("id_ed25519.pub").write_text("ssh-ed25519 AAAA left")
    run_module("ssh_key", path=str(key))
    assert key.with_name("id_ed25519.pub").read_text().split()[1] == public_of(key)
