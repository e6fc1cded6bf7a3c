"""Errors about secrets that other users can read, and about secrets that no trainer gets."""

from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import RunError
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.secret_sources import (
    check_secret_files,
    outside_secrets,
    readable_secrets,
)

PLAIN = "secrets:\n  HF_TOKEN: planted-in-plain-text\n"


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "an inventory/group_vars/all/secrets.yml"
    path.parent.mkdir(parents=True)
    path.write_text(PLAIN)
    path.chmod(0o640)
    return path


def sources(file: Path) -> list[str]:
    return [str(file.parents[2])]


def test_the_error_about_readable_secrets_has_the_commands_for_the_file(file):
    with pytest.raises(RunError) as error:
        check_secret_files(sources(file))

    assert f"ansible-vault encrypt '{file}'" in str(error.value)
    assert f"chmod 600 '{file}'" in str(error.value)
    assert "(mode 0640)" in str(error.value)
    file.chmod(0o600)
    check_secret_files(sources(file))


def test_a_secrets_file_is_found_beside_an_inventory_but_not_for_a_host_list(file, monkeypatch):
    hosts = file.parents[2] / "hosts.yml"
    hosts.write_text("all: {}\n")
    assert [*readable_secrets([str(hosts), *sources(file)])] == [(file, 0o640)]
    monkeypatch.chdir(file.parents[2])
    assert not [*readable_secrets(["localhost,"])]
    with_comma = file.parents[2].rename(file.parents[3] / "one,two")
    assert len([*readable_secrets([str(with_comma)])]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "$ANSIBLE_VAULT;1.1;AES256\n6331\n",
        "secrets:\n  HF_TOKEN: !vault |\n    $ANSIBLE_VAULT;1.1;AES256\n    6331\n",
        "secrets:\n  HF_TOKEN: \"{{ lookup('ansible.builtin.env', 'HF_TOKEN') }}\"\n",
    ],
    ids=["whole file", "one value", "lookup"],
)
def test_encrypted_or_looked_up_secrets_may_be_readable_by_others(file, text):
    file.write_text(text)

    assert not [*readable_secrets(sources(file))]


@pytest.mark.parametrize("text", ["", "# HF_TOKEN: none-is-set\n", "secrets:\n", "secrets: {}\n"])
def test_a_file_without_secrets_may_be_readable_by_others(file, text):
    file.write_text(text)

    check_secret_files(sources(file))


def test_a_path_that_cannot_be_read_counts_as_without_a_secrets_file(file, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)

    assert not [*readable_secrets(sources(file))]


def test_only_environment_variables_that_look_secret_count_as_misplaced():
    names = ["HF_TOKEN", "WANDB_API_KEY", "MAX_TOKENS", "KEY_FILE", "ansible_password", "secrets"]

    assert outside_secrets(names, ["HF_TOKEN"]).startswith("WANDB_API_KEY: set outside")
    assert outside_secrets(names, ["HF_TOKEN", "WANDB_API_KEY"]) == ""
