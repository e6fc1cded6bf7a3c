import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import release

from tests.localcloud.api.local_api import PROJECT


@dataclass(frozen=True)
class Installed:
    """An empty place that has the collection, and the environment in which nothing else is seen."""

    place: Path
    environment: dict[str, str]

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            command,
            cwd=self.place,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    place = tmp_path_factory.mktemp("place")
    artefact = release.build(tmp_path_factory.mktemp("dist"))
    return Installed(place, release.installed(artefact, place))


def test_every_playbook_and_plugin_of_the_artefact_is_known_by_its_name(tmp_path):
    said = release.check(release.build(tmp_path / "dist"), tmp_path)

    assert [line.rpartition(" ")[2] for line in said] == [
        "module",
        "inventory",
        "callback",
        "roles",
        "name",
    ]


def test_an_artefact_in_a_directory_of_here_is_found_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # as make release says dist
    (tmp_path / "place").mkdir()

    artefact = release.build(Path("dist"))

    assert artefact == tmp_path / f"dist/tpufleet-core-{release.version()}.tar.gz"
    assert release.installed(artefact, tmp_path / "place")


def test_the_changelog_speaks_of_this_version():
    release.check_changelog()


def test_the_installed_inventory_and_plan_work_on_a_cloud(installed, local_api):
    local_api.ready("pod")
    config = {
        "plugin": "tpufleet.core.tpu",
        "project": PROJECT,
        "zones": ["-"],
        "address": "internal",
        "endpoint": local_api.endpoint,
        "credentials_file": str(local_api.credentials_file),
        "known_hosts_file": str(installed.place / "known_hosts"),
    }
    (installed.place / "tpu.yml").write_text(json.dumps(config))
    environment = {"ANSIBLE_INVENTORY_ENABLED": "tpufleet.core.tpu"}

    hosts = installed.run("ansible-inventory", "-i", "tpu.yml", "--list", **environment)
    fleet = json.dumps({"tpu_fleet": [], "grant_ends": ""})
    plan = installed.run(
        "ansible-playbook", "-i", "tpu.yml", "tpufleet.core.plan", "-e", fleet, **environment
    )

    assert "pod-w0" in hosts.stdout, hosts.stdout + hosts.stderr
    assert plan.returncode == 0, plan.stdout + plan.stderr
    assert "pod" in plan.stdout


def test_the_artefact_holds_no_stray_file(installed):
    (release.ROOT / "train" / "__pycache__").mkdir(exist_ok=True)

    core = installed.place / "ansible_collections/tpufleet/core"

    assert not [name for _, names, _ in os.walk(core) for name in names if name == "__pycache__"]
    assert (core / "train" / "__main__.py").exists()
    assert (core / "requirements" / "worker-tpu.lock").exists()
