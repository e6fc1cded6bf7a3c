"""Lock files that the controller creates from a user's requirements and an index on disk."""

import hashlib
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import packages
from ansible_collections.tpufleet.core.plugins.plugin_utils.setup.own_lock import (
    LockError,
    Sources,
    is_current,
    lock_text,
    own_lock,
    parse_extras,
    stale_lock,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collections.package_index import publish, variables

#: Options that clear the variables that setup.yml refuses together with jax_lock.
CLEARED = "-e requirements= -e worker_extras="


class Workspace:
    """A user's directory with a project that pins pear 1.0, and an index that also has pear 2.0."""

    def __init__(self, folder: Path) -> None:
        self.index, self.lock = folder / "index", folder / "mine.lock"
        publish(self.index, "apple", "1.0", needs="pear")
        publish(self.index, "fig", "1.0")
        publish(self.index, "pear", "1.0")
        publish(self.index, "pear", "2.0")
        project = folder / "project"
        project.mkdir()
        (project / "worker-cpu.in").write_text("pear\n")
        (project / "worker-cpu.lock").write_text("pear==1.0\n")
        (project / "dev.lock").write_text("")
        self.file = folder / "mine.in"
        self.file.write_text("apple\n")
        self.sources = Sources(self.file, (), project, "worker-cpu")

    def make(self, *, upgrade: bool = False, **changes) -> list[str]:
        """Create the lock file and return the packages that it pins."""
        sources = replace(self.sources, **changes)
        self.lock.write_text(lock_text(sources, self.lock, variables(self.index), upgrade))
        assert is_current(sources, self.lock)
        return packages(self.lock.read_text())


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return Workspace(tmp_path)


def test_a_file_prefers_versions_of_the_project_but_its_includes_can_require_others(workspace):
    workspace.file.with_name("more.in").write_text("pear >= 2\n")
    workspace.file.write_text("apple\n-r more.in\n")

    assert workspace.make() == ["apple==1.0", "pear==2.0"]


def test_a_file_of_requirements_with_extras_is_the_whole_environment(workspace):
    assert workspace.make(extras=("fig",)) == ["apple==1.0", "fig==1.0", "pear==1.0"]
    assert workspace.lock.read_text().count("--hash=sha256:") == 3


def test_extras_alone_are_added_to_the_project_whose_versions_an_update_keeps(workspace):
    lock = workspace.make(requirements=None, extras=("fig",), upgrade=True)

    assert lock == ["fig==1.0", "pear==1.0"]


def test_a_changed_file_keeps_locked_versions_and_an_update_does_not(workspace):
    workspace.make()
    publish(workspace.index, "apple", "1.1", needs="pear")
    workspace.file.write_text("apple\nfig\n")
    assert not is_current(workspace.sources, workspace.lock)

    assert workspace.make() == ["apple==1.0", "fig==1.0", "pear==1.0"]
    assert workspace.make(upgrade=True) == ["apple==1.1", "fig==1.0", "pear==2.0"]


@pytest.mark.parametrize("option", ["-r more.in", "-c more.in", "--requirement=more.in"])
def test_a_change_of_an_included_file_outdates_the_lock_file(workspace, option):
    more = workspace.file.with_name("more.in")
    more.write_text("pear < 2\n")
    workspace.file.write_text(f"apple\n{option}\n")
    before = workspace.sources.digest()

    more.write_text("pear >= 2\n")

    assert workspace.sources.digest() != before


def test_a_pyproject_file_names_requirements_too(workspace):
    file = workspace.file.with_name("pyproject.toml")
    file.write_text('[project]\nname = "mine"\nversion = "1"\ndependencies = ["fig"]\n')

    assert workspace.make(requirements=file) == ["fig==1.0"]


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ("quince", "Because quince was not found in"),
        ("pear==3", "there is no version of pear==3"),
        ("pear pear", "Couldn't parse requirement in `.*mine.in`"),
    ],
)
def test_a_failed_lock_shows_one_line_with_the_command_and_keeps_the_lock_file(
    workspace, requirement, reason
):
    workspace.lock.write_text("pear==1.0\n")
    workspace.file.write_text(f"{requirement}\n")

    with pytest.raises(LockError, match=rf"mine.in: cannot be locked \(.*{reason}") as error:
        workspace.make()

    assert str(error.value).endswith(f"ansible-playbook setup.yml -e requirements={workspace.file}")
    assert "\n" not in str(error.value)
    assert workspace.lock.read_text() == "pear==1.0\n"


def test_an_error_masks_the_password_of_an_index_in_the_environment(workspace, monkeypatch):
    monkeypatch.setenv("UV_INDEX", "http://user:hunter2hunter2@[broken/simple")

    with pytest.raises(LockError, match="cannot be locked") as error:
        workspace.make()

    assert "********" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_package_without_wheels_is_named_and_locked_with_a_wheel_of_the_user(
    workspace, monkeypatch
):
    wheels = workspace.file.with_name("wheels")
    workspace.file.write_text("quince\n")
    (workspace.index / "quince").mkdir()
    (workspace.index / "quince/index.html").write_text(
        '<a href="quince-1.0.tar.gz">quince-1.0.tar.gz</a>'
    )
    with pytest.raises(
        LockError, match=r"no usable wheels.* build missing wheels for jax_own_wheels"
    ):
        workspace.make()

    publish(wheels, "quince", "1.0")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels / "quince"))

    assert workspace.make() == ["quince==1.0"]
    (wheel,) = (wheels / "quince").glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in workspace.lock.read_text()


@pytest.mark.parametrize("option", ["", "-e "])
def test_a_local_directory_as_requirement_is_refused(workspace, option):
    project = workspace.file.with_name("lib")
    project.mkdir()
    (project / "pyproject.toml").write_text('[project]\nname = "lib"\nversion = "1"\n')
    workspace.file.write_text(f"apple\n{option}./lib\n")

    with pytest.raises(LockError, match=r"cannot be locked \(.*lib\).* -e code="):
        workspace.make()


@pytest.mark.parametrize("path", ["nowhere.in", "."])
def test_a_file_that_cannot_be_read_is_named(workspace, path):
    with pytest.raises(LockError, match=r"cannot be read .* -e requirements=FILE$"):
        workspace.make(requirements=workspace.file.parent / path)


@pytest.mark.parametrize("extra", ["--index-url=http://x", "-r /etc/passwd", "../mine", "a\nb"])
def test_an_extra_is_a_requirement_and_no_option_of_uv(workspace, extra):
    with pytest.raises(LockError, match="is not a requirement"):
        workspace.make(extras=(extra,))


def test_the_lock_file_is_beside_the_requirements(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert own_lock("mine.in", [], "worker-cpu", "/locks", "/project") == f"{tmp_path}/mine.lock"
    of_extras = own_lock("", ["fig", "apple"], "worker-tpu", "/l", "/project")
    assert of_extras.startswith("/l/worker-tpu-apple-fig-")
    assert own_lock(None, "fig,apple", "worker-tpu", "/l", "/project") == of_extras
    assert own_lock(None, [], "worker-tpu", "/l", "/project") == ""
    with pytest.raises(AnsibleFilterError, match=f"-e jax_lock=.*{CLEARED}$"):
        own_lock("mine.lock", [], "worker-cpu", "/locks", "/project")


def test_requirements_with_different_extras_have_different_lock_files(tmp_path):
    file, paths = str(tmp_path / "mine.in"), set()
    extras = [[], ["fig"], ["fig<2"], ["fig>=2"]]

    for platform in ("worker-cpu", "worker-tpu"):  # both platforms get the same lock file
        paths |= {Path(own_lock(file, names, platform, "/l", "/project")) for names in extras}

    assert len(paths) == len(extras)
    assert {path.parent for path in paths} == {tmp_path}


def test_a_lock_file_that_setup_did_not_make_is_never_replaced(workspace):
    workspace.lock.write_text("apple==0.9\n")

    with pytest.raises(LockError, match=f"-e jax_lock={workspace.lock} {CLEARED}$"):
        is_current(workspace.sources, workspace.lock)


def test_the_options_of_requirements_and_extras_can_be_pasted(workspace):
    sources = replace(workspace.sources, extras=("einops >= 0.8", "fig"))

    *file_option, option, value = shlex.split(sources.option())

    assert file_option == ["-e", f"requirements={workspace.file}"]
    assert (option, json.loads(value)) == ("-e", {"worker_extras": ["einops >= 0.8", "fig"]})
    assert shlex.split(replace(sources, requirements=None).option()) == [option, value]


@settings(max_examples=30)
@given(st.lists(st.text(min_size=1)))
def test_extras_name_a_file_in_the_directory_of_lock_files(extras):
    path = own_lock(None, extras, "worker-tpu", "/locks", "/project")

    assert bool(path) == bool(parse_extras(extras))
    assert not path or Path(path).parent == Path("/locks")
    assert own_lock(None, extras[::-1], "worker-tpu", "/locks", "/project") == path


def test_a_lock_file_is_stale_once_its_requirements_have_changed(workspace, tmp_path):
    (tmp_path / "requirements").symlink_to(workspace.sources.project)
    workspace.make(project=tmp_path / "requirements")

    def warning() -> str:
        return stale_lock(str(workspace.lock), str(workspace.file), [], "worker-cpu", str(tmp_path))

    workspace.file.write_text("# what I need\n\napple  # for pies\n")
    assert warning() == ""
    workspace.file.write_text("apple\nfig\n")
    assert warning().startswith(f"{workspace.file}: changed since setup made mine.lock")
    assert warning().endswith(f"ansible-playbook setup.yml -e requirements={workspace.file}")
    workspace.lock.write_text("apple==1.0\n")  # no longer the file that setup made
    assert warning() == ""
    workspace.lock.unlink()
    assert warning() == ""
