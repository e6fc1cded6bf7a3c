"""Environments that uv creates from a package index, from its cache, or from copied wheels."""

import io
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import from_leader, python_env
from ansible_collections.tpufleet.core.plugins.module_utils.worker.env_copy import copy_env
from ansible_collections.tpufleet.core.plugins.module_utils.worker.env_install import (
    compile_bytecode,
    copy_cache,
    index_environment,
    install_from_index,
    install_from_wheels,
    remove_unused,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.from_leader import (
    FromLeaderError,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.python_env import (
    EnvError,
    is_complete,
)
from ansible_collections.tpufleet.core.plugins.modules import python_env as env_module
from ansible_collections.tpufleet.core.plugins.modules.python_env import from_index

from harness.scripted_api import Reply, Request, ScriptedApi, error
from tests.collections.error_lines.bad import nowhere
from tests.collections.modules.test_env_copy import fake_ssh, serve
from tests.collections.package_index import digest_of, make_wheel
from tests.collections.running_modules import run_module

UV, PYTHON = Path(sys.prefix) / "bin/uv", Path(sys.executable)
ENV_A, ENV_B = "a" * 16, "b" * 16


class Index:
    """A package index on loopback (PEP 503, PEP 658)."""

    def __init__(self, folder: Path, api: ScriptedApi) -> None:
        self.folder, self.api = folder, api
        self.url = f"{api.endpoint}/simple"
        self.files: dict[str, bytes] = {}
        api.handler = self._respond

    def _respond(self, request: Request) -> Reply:
        content = self.files.get(request.path)
        headers = (("Content-Type", "text/html"),)
        return error(404, "not found") if content is None else Reply(content, headers=headers)

    @property
    def asked(self) -> list[str]:
        """The packages whose wheels were downloaded."""
        paths = [Path(request.path) for request in self.api.asked]
        return [path.name.partition("-")[0] for path in paths if path.suffix == ".whl"]

    def add(self, name: str, body: str = "", needs: str = "") -> str:
        """Add a wheel of one module to the index; return its line of a lock file."""
        line = make_wheel(self.folder, name, body=body, needs=needs)
        wheel = f"{name}-1.0-py3-none-any.whl"
        page = f'<!DOCTYPE html><a href="/{wheel}" data-core-metadata="true">{wheel}</a>'
        self.files[f"/simple/{name}/"] = page.encode()
        self.files[f"/{wheel}"] = (self.folder / wheel).read_bytes()
        with zipfile.ZipFile(self.folder / wheel) as archive:
            self.files[f"/{wheel}.metadata"] = archive.read(f"{name}-1.0.dist-info/METADATA")
        return line


@pytest.fixture
def index(tmp_path: Path, scripted: ScriptedApi) -> Index:
    return Index(tmp_path / "index", scripted)


@pytest.fixture
def make(tmp_path, index):
    """Return a function that creates an environment from a lock file and the index."""

    def install(name: str, lock: str, variables=None, **more) -> Path:
        env = tmp_path / "envs" / name
        variables = {"UV_HTTP_RETRIES": "0"} | (variables or {"UV_DEFAULT_INDEX": index.url})
        install_from_index(env, lock, PYTHON, UV, variables, tmp_path / "cache", **more)
        return env

    return install


def library(env: Path) -> Path:
    return next(env.glob("lib/python3*/site-packages"))


def refusal(make, lock: str, variables=None) -> str:
    """Check that an installation fails with an error of one line; return the error."""
    with pytest.raises(EnvError) as caught:
        make(ENV_A, lock, variables)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_packages_in_another_environment_are_installed_without_a_download(index, make):
    apple = index.add("apple")
    make(ENV_A, apple)

    env = make(ENV_B, apple + index.add("pear"))

    assert sorted(file.name for file in library(env).glob("*.py")) == ["apple.py", "pear.py"]
    assert index.asked == ["apple", "pear"]


def test_a_wheel_of_the_user_is_installed_from_its_directory(tmp_path, index, make, monkeypatch):
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "own"))
    own_wheel = make_wheel(tmp_path / "own", "quince", body="taste = 'sour'\n")

    env = make(ENV_A, index.add("apple") + own_wheel)

    assert (library(env) / "quince.py").read_text() == "taste = 'sour'\n"
    with pytest.raises(EnvError, match="Hash mismatch for `quince"):
        make(ENV_B, f"{own_wheel.partition('sha256:')[0]}sha256:{'0' * 64}\n")


def test_a_wheel_with_another_content_is_refused_in_one_line(tmp_path, index, make):
    lock = index.add("apple")
    index.add("apple", "evil = True")

    assert "Hash mismatch for `apple==1.0`. Fix the lock" in refusal(make, lock)
    assert not is_complete(tmp_path / "envs" / ENV_A)


@pytest.mark.parametrize("name", ["no-such-thing", "apple"])
def test_a_requirement_without_a_wheel_is_named_with_the_fix(index, make, name):
    index.add("apple")

    error = refusal(make, f"{name}==2.0 --hash=sha256:{'0' * 64}\n")

    assert f"has a wheel of {name}==2.0 for this Python. Lock with uv pip compile" in error


def test_root_builds_no_package_from_its_source(tmp_path, index, make):
    program = f"import pathlib; pathlib.Path('{tmp_path}/ran').touch()".encode()
    source = tmp_path / "plum-1.0.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        member = tarfile.TarInfo("plum-1.0/setup.py")
        member.size = len(program)
        archive.addfile(member, io.BytesIO(program))
    index.files["/simple/plum/"] = f'<!DOCTYPE html><a href="/{source.name}">x</a>'.encode()
    index.files[f"/{source.name}"] = source.read_bytes()

    error = refusal(make, f"plum==1.0 --hash=sha256:{digest_of(source)}\n")

    assert "has a wheel of plum==1.0 for this Python" in error
    assert not (tmp_path / "ran").exists()


def test_an_index_that_is_down_is_named_with_the_reason_and_without_its_password(index, make):
    address = nowhere().replace("//", "//ada:pass-word@")

    error = refusal(make, index.add("apple"), {"UV_DEFAULT_INDEX": f"{address}/simple"})

    assert "/simple/apple/: Connection refused" in error
    assert "download the packages (jax_wheels_from: controller)" in error
    assert "pass-word" not in error


def test_a_lock_file_without_hashes_is_refused(index, make, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    index.add("apple")

    assert re.search(r"must have a hash.*apple==1\.0", refusal(make, "apple==1.0\n"))


def test_files_from_before_a_boot_are_not_trusted(tmp_path, index, make, monkeypatch):
    lock = index.add("apple", "taste = 'sweet'\n")
    # Empty a file, as a power cut may do.
    (library(make(ENV_A, lock)) / "apple.py").write_text("")
    # ENV_B is damaged, too, because both environments have hard links to one file in uv's cache.
    assert library(make(ENV_B, lock)).joinpath("apple.py").read_text() == ""
    monkeypatch.setattr(python_env, "CHECKED", tmp_path / "since the next boot")

    env = make(ENV_A, lock)

    assert (library(env) / "apple.py").read_text() == "taste = 'sweet'\n"


def test_each_pin_may_come_from_any_of_the_indexes(index, make):
    apple = index.add("apple")
    index.files["/more/apple/"] = b"<!DOCTYPE html>"
    more = {"UV_EXTRA_INDEX_URL": index.url.replace("simple", "more")}

    make(ENV_A, apple, {"UV_DEFAULT_INDEX": index.url, **more})

    assert index.asked == ["apple"]


def test_conflicting_pins_are_not_reported_as_a_missing_wheel(index, make):
    lock = index.add("pear") + index.add("apple", needs="pear>=2")

    assert re.search(r"apple depend on pear>=2.*\. Fix the lock", refusal(make, lock))


def test_an_index_that_requires_authentication_is_reported(index, make):
    lock = index.add("apple")
    index.api.handler = lambda _: error(401, "log in")

    assert "authentication credentials (401" in refusal(make, lock)


@pytest.mark.parametrize("password", ["pass-word", "pa#ss", "pa/ss"])
def test_a_password_in_an_index_s_address_is_not_shown_or_kept(tmp_path, index, make, password):
    lock, url = index.add("apple"), index.url.replace("//", f"//ada:{password}@")
    try:
        make(ENV_A, lock, {"UV_DEFAULT_INDEX": url})
    except EnvError as error:
        assert password not in str(error)
    files = (tmp_path / "cache").rglob("*")
    assert not any(password.encode() in file.read_bytes() for file in files if file.is_file())


def test_an_index_configured_for_pip_is_used_by_uv(index, make):
    make(ENV_A, index.add("apple"), {"PIP_INDEX_URL": index.url})

    assert index.asked == ["apple"]


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        (
            {"PIP_INDEX_URL": "pip", "UV_DEFAULT_INDEX": "uv"},
            {"UV_DEFAULT_INDEX": "uv"},
        ),
        (
            {"PIP_EXTRA_INDEX_URL": "pip"},
            {"UV_EXTRA_INDEX_URL": "pip", "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
        (
            {"PIP_EXTRA_INDEX_URL": "pip", "UV_EXTRA_INDEX_URL": "uv"},
            {"UV_EXTRA_INDEX_URL": "uv", "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
        (
            {"UV_INDEX": "uv"},
            {"UV_INDEX": "uv", "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
    ],
)
def test_an_index_of_uv_has_priority_over_one_of_pip_and_over_the_worker_s(
    monkeypatch, configured, expected
):
    for name in configured:
        monkeypatch.setenv(name, "of the worker")

    variables = index_environment(configured)

    assert {
        name: value
        for name, value in variables.items()
        if name.startswith("UV_") and "INDEX" in name
    } == expected


def test_a_worker_that_cannot_copy_the_environment_uses_the_leader_s_wheels(
    tmp_path, index, make, monkeypatch
):
    lock = index.add("apple")
    make(ENV_A, lock)
    (tmp_path / "served").mkdir()
    (tmp_path / "cache").rename(tmp_path / "served/uv")
    serve(tmp_path, {"cache": str(tmp_path / "served")}, monkeypatch)
    monkeypatch.setattr(python_env, "CHECKED", tmp_path / "checked by the other worker")

    copy_cache(tmp_path / "cache")

    assert is_complete(make(ENV_B, lock, offline=True))
    assert index.asked == ["apple"]


def test_another_worker_can_copy_an_installed_environment(tmp_path, index, make, monkeypatch):
    env = make(ENV_A, index.add("apple"))
    serve(tmp_path, {"envs": str(env.parent)}, monkeypatch)

    copy_env(tmp_path / "copy" / ENV_A, PYTHON)

    assert is_complete(tmp_path / "copy" / ENV_A)


def test_a_copy_from_a_leader_that_disconnects_is_discarded(tmp_path, monkeypatch):
    monkeypatch.setattr(from_leader, "TRIES", 1)
    serve(tmp_path, {"cache": str(tmp_path)}, monkeypatch)
    fake_ssh(tmp_path, "echo '@ERROR: gone'; exit 1")

    with pytest.raises(FromLeaderError):
        copy_cache(tmp_path / "uv")
    assert not (tmp_path / "uv").exists()


def test_a_worker_whose_leader_serves_nothing_downloads_packages_with_a_warning(
    tmp_path, index, monkeypatch
):
    monkeypatch.setattr(env_module, "UV", UV)
    monkeypatch.setattr(env_module, "CACHE", tmp_path / "cache")
    options = {"lock": index.add("apple")}
    options["env"] = {"UV_DEFAULT_INDEX": index.url}

    warning = from_index(options, tmp_path / ENV_A, PYTHON, leaders_first=True)

    assert "downloaded the packages itself" in warning
    assert is_complete(tmp_path / ENV_A)


def test_unused_wheels_are_removed_and_used_ones_stay(tmp_path, index, make):
    apple, pear = index.add("apple"), index.add("pear")
    shutil.rmtree(make(ENV_A, apple + pear))
    make(ENV_B, pear)

    remove_unused(tmp_path / "cache")

    index.api.asked.clear()
    assert is_complete(make(ENV_A, apple + pear))
    assert index.asked == ["apple"]


def test_check_mode_shows_which_environments_would_be_removed(tmp_path, systemctl):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(PYTHON)
    (tmp_path / "envs" / ENV_A).mkdir(parents=True)
    constants = {"ROOT": str(tmp_path), "ETC_DIR": str(tmp_path / "etc")}

    result = run_module("python_env", check=True, lock="apple==1.0", keep=0, constants=constants)

    assert result["removed"] == [ENV_A]
    assert (tmp_path / "envs" / ENV_A).is_dir()


def test_an_environment_is_created_from_wheels_whose_hashes_are_checked(tmp_path):
    lock = make_wheel(tmp_path / "wheels", "apple", body="taste = 'sweet'\n")
    env = tmp_path / ENV_A

    install_from_wheels(env, lock, PYTHON, UV, tmp_path / "wheels", {})

    assert is_complete(env)
    assert (env / "requirements.lock").read_text() == lock
    make_wheel(tmp_path / "wheels", "apple", body="taste = 'bitter'\n")
    with pytest.raises(EnvError, match="uv pip install"):
        install_from_wheels(tmp_path / ENV_B, lock, PYTHON, UV, tmp_path / "wheels", {})
    assert not is_complete(tmp_path / ENV_B)


def test_packages_are_compiled_without_their_own_tests(tmp_path):
    package = tmp_path / "tests/env/lib/python3/site-packages/package"
    for name in ("module.py", "tests/test_module.py", "attestations/module.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x = 1\n")
    (package / "template.py").write_text("{% no Python %}\n")
    env = tmp_path / "tests/env"
    (env / "bin").mkdir()
    (env / "bin/python").symlink_to(sys.executable)

    compile_bytecode(env)

    compiled = [path.relative_to(package).parent.parent for path in package.rglob("*.pyc")]
    assert sorted(map(str, compiled)) == [".", "attestations"]


def test_root_runs_no_code_of_a_package_while_it_compiles_the_bytecode(tmp_path, index, make):
    env = make(ENV_A, index.add("apple"))
    shutil.rmtree(library(env) / "__pycache__")
    (library(env) / "evil.pth").write_text(
        f"import pathlib; pathlib.Path('{tmp_path}/ran').touch()"
    )

    compile_bytecode(env)

    assert list(library(env).glob("__pycache__/apple.*.pyc"))
    assert not (tmp_path / "ran").exists()
