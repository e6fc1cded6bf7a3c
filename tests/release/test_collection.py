import json
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import release

from tests.localcloud.api.local_api import PROJECT

UNTRACKED = "requirements/untracked.txt"


@dataclass(frozen=True)
class Installed:
    """The collection's archive, where it is installed, and variables by which Ansible finds it."""

    archive: Path
    directory: Path
    environment: dict[str, str]

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    directory = tmp_path_factory.mktemp("installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        untracked = release.ROOT / UNTRACKED
        untracked.touch()
        try:
            archive = release.build(Path("dist"))  # a relative path, as from ``make release``
        finally:
            untracked.unlink()
    return Installed(archive, directory, release.installed(archive, directory))


def test_ansible_finds_every_plugin_role_and_playbook_of_the_archive(installed):
    lines = release.check(installed.directory, installed.environment)

    assert [line.rpartition(" ")[2] for line in lines] == [
        "module",
        "inventory",
        "callback",
        "roles",
        "name",
    ]


def test_the_changelog_has_a_section_for_this_version():
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
        "known_hosts_file": str(installed.directory / "known_hosts"),
    }
    (installed.directory / "tpu.yml").write_text(json.dumps(config))
    environment = {"ANSIBLE_INVENTORY_ENABLED": "tpufleet.core.tpu"}

    hosts = installed.run("ansible-inventory", "-i", "tpu.yml", "--list", **environment)
    fleet = json.dumps({"tpu_fleet": [], "grant_ends": ""})
    plan = installed.run(
        "ansible-playbook", "-i", "tpu.yml", "tpufleet.core.plan", "-e", fleet, **environment
    )

    assert "pod-w0" in hosts.stdout, hosts.stdout + hosts.stderr
    assert plan.returncode == 0, plan.stdout + plan.stderr
    assert "pod" in plan.stdout


def test_the_archive_contains_no_untracked_file(installed):
    with tarfile.open(installed.archive) as archive:
        names = archive.getnames()

    assert UNTRACKED not in names
    assert {"train/__main__.py", "requirements/worker-tpu.lock"} <= set(names)
