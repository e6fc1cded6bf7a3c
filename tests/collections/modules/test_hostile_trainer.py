"""Hostile files in directories of the trainer's user, and what root does with them.

Each test runs as root; the user daemon takes the role of the trainer's user.
"""

import contextlib
import io
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker import run_start, run_unit
from ansible_collections.tpufleet.core.plugins.module_utils.worker.locks import one_at_a_time
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import (
    TRAINER,
    RunError,
    WorkerPaths,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_log import (
    log_since,
    log_start,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_progress import progress
from ansible_collections.tpufleet.core.plugins.module_utils.worker.safe_files import (
    is_directory,
    make_directory,
    read_text,
    write_file,
)
from ansible_collections.tpufleet.core.plugins.modules.run_pack import pack

from harness.valid_record import process
from tests.collections.role_templates import rendered

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it needs root and a second user")
needs_tmpfiles = pytest.mark.skipif(
    not shutil.which("systemd-tmpfiles"), reason="there is no systemd here"
)
USER = pwd.getpwnam("daemon")
STOPPED = {"ActiveState": "inactive"}
SECRET = "hunter2"
READ = ("heartbeat.json", "exit.json", "rendezvous.json", "log", "metrics.jsonl", "config.yml")
WRITTEN = ("heartbeat.json", "exit.json", "rendezvous.json", "config.yml")
LAUNCH = process(attempt=1, compile_cache="")


@pytest.fixture
def tmp_path():
    """A directory that other users can enter, unlike pytest's ``tmp_path``."""
    with tempfile.TemporaryDirectory(prefix="tpufleet-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def paths(paths, monkeypatch):
    """A worker with a run of the trainer's user; calls of systemctl do nothing and succeed."""
    os.chown(paths.run_dir("mine"), USER.pw_uid, USER.pw_gid)
    monkeypatch.setattr(run_start, "USER", USER.pw_name)
    monkeypatch.setattr(run_start, "systemctl", lambda *_: "")
    monkeypatch.setattr(run_start, "configure", lambda *_: None)
    return paths


@pytest.fixture
def secret(tmp_path):
    """A file that only root may read, in a directory of root."""
    folder = tmp_path / "roots"
    folder.mkdir(mode=0o755)
    file = folder / "secret"
    file.write_text(json.dumps({"state": SECRET, "error": SECRET, "status": SECRET}) + "\n")
    file.chmod(0o600)
    return file


def link(path: Path, target: Path) -> None:
    """Create a link that belongs to the trainer's user."""
    path.symlink_to(target)
    os.lchown(path, USER.pw_uid, USER.pw_gid)


def all_that_root_reads(paths: WorkerPaths) -> str:
    folder = paths.run_dir("mine")
    results = [
        run_unit.observe("mine", paths, lines=20, unit=STOPPED),
        log_since(folder / "log", 0),
        log_start(folder / "log", 1),
        progress(folder),
    ]
    return json.dumps(results)


def packed(paths: WorkerPaths, checkpoints: str = "none") -> dict[str, bytes]:
    """Pack the run as fetch.yml does; return the content of each file in the archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        options = {"run": "mine", "bundle": False, "checkpoints": checkpoints}
        pack(options | {"checkpoint_pattern": ""}, paths, archive)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        return {
            member.name: archive.extractfile(member).read() for member in archive if member.isfile()
        }


@pytest.mark.parametrize("make", [link, lambda path, target: os.link(target, path)])
def test_status_logs_and_fetch_follow_no_symbolic_or_hard_link(paths, secret, make):
    for name in READ:
        make(paths.run_dir("mine") / name, secret)

    assert SECRET not in all_that_root_reads(paths)
    assert packed(paths) == {}


def test_status_logs_and_fetch_do_not_wait_for_a_pipe(paths):
    for name in READ:
        os.mkfifo(paths.run_dir("mine") / name)
    program = (
        "import sys; from tests.collections.modules import test_hostile_trainer as t\n"
        "from pathlib import Path\n"
        "paths = t.WorkerPaths(*map(Path, sys.argv[1:]))\n"
        "t.all_that_root_reads(paths); assert t.packed(paths).keys() <= {'mine/launch.json'}"
    )

    subprocess.run(
        [sys.executable, "-c", program, *map(str, paths)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"time": 1e999, "step": true}', '{"a":' * 50_000, "[]", '{"time": "x"}'],
    ids=["deep", "odd numbers", "deep objects", "a list", "text for a number"],
)
def test_a_malformed_file_of_a_trainer_does_not_break_status_and_logs(paths, content):
    for name in READ:
        (paths.run_dir("mine") / name).write_text(content)

    observed = run_unit.observe("mine", paths, unit=STOPPED)

    assert observed["heartbeat_age"] is None
    all_that_root_reads(paths)


def test_a_heartbeat_and_an_end_carry_no_control_characters_to_a_terminal(paths):
    escape = "\x1b]0;mine\x07"
    for name in ("heartbeat.json", "exit.json", "rendezvous.json"):
        values = dict.fromkeys(("state", "status", "code", "error", "peer", "attempt"), escape)
        (paths.run_dir("mine") / name).write_text(json.dumps(values | {"waiting_for": [escape]}))

    for unit in (STOPPED, {"ActiveState": "active"}):
        assert "\\u001b" not in json.dumps(run_unit.observe("mine", paths, unit=unit))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_launch_replaces_a_link_and_does_not_change_its_target(paths, secret, name):
    before = secret.read_text()
    link(paths.run_dir("mine") / name, secret)

    run_start.start(LAUNCH, paths)

    assert (secret.read_text(), secret.stat().st_uid) == (before, 0)
    assert not (paths.run_dir("mine") / name).is_symlink()
    assert (paths.run_dir("mine") / "config.yml").read_text() == LAUNCH.spec.config


def test_only_root_can_read_the_secrets_of_a_run_and_the_trainer_can_read_its_launch(paths):
    run_start.start(LAUNCH, paths)

    files = {path.name: path.stat() for path in paths.unit_dir("mine").iterdir()}
    assert {name: stat.S_IMODE(file.st_mode) for name, file in files.items()} == {
        "environment": 0o600,
        "secrets": 0o600,
        "launch.json": 0o640,
    }
    assert files["launch.json"].st_gid == USER.pw_gid
    assert {file.st_uid for file in files.values()} == {0}


@pytest.mark.parametrize("component", ["state", "runs", "mine", "home"])
def test_a_launch_follows_no_link_of_the_trainers_user_at_any_component(paths, secret, component):
    """On workers, only root can replace the parent directories. Here, the trainer's user can."""
    path = {
        "state": paths.state,
        "runs": paths.run_dir("mine").parent,
        "mine": paths.run_dir("mine"),
        "home": paths.home,
    }[component]
    if component != "mine":
        os.chown(paths.state.parent, USER.pw_uid, USER.pw_gid)
        os.chown(paths.state, USER.pw_uid, USER.pw_gid)
    if path.exists():
        shutil.rmtree(path)
    (secret.parent / "mine").mkdir()
    link(path, secret.parent)

    with pytest.raises(OSError, match=r"link|Not a directory"):
        run_start.start(LAUNCH, paths)

    assert {path.stat().st_uid for path in (secret.parent, *secret.parent.rglob("*"))} == {0}
    assert {path.name for path in secret.parent.iterdir()} == {"secret", "mine"}


@pytest.mark.parametrize("component", ["runs", "mine"])
def test_status_and_fetch_follow_no_link_to_a_directory(paths, secret, component):
    os.chown(paths.state, USER.pw_uid, USER.pw_gid)
    target = secret.parent / "mine" if component == "runs" else secret.parent
    target.mkdir(exist_ok=True)
    for name in READ:
        shutil.copy(secret, target / name)
    path = paths.run_dir("mine")
    shutil.rmtree(paths.state / "runs")
    if component == "mine":
        path.parent.mkdir()
    link(path.parent if component == "runs" else path, secret.parent)

    assert SECRET not in all_that_root_reads(paths)
    with contextlib.suppress(RunError):
        assert SECRET not in str(packed(paths))


@pytest.mark.parametrize("link_path", ["checkpoints", "checkpoints/3", "checkpoints/3/arrays"])
@pytest.mark.parametrize("which", ["all", "newest"])
def test_fetch_packs_no_checkpoint_that_the_trainers_user_may_not_read(
    paths, secret, tmp_path, link_path, which
):
    """The trainer's user owns the checkpoint directory, so any path below it may be a link."""
    secret.parent.chmod(0o700)
    trainer_dir = tmp_path / "own"
    path = trainer_dir / link_path
    path.parent.mkdir(parents=True)
    link(path, secret if link_path.endswith("arrays") else secret.parent)
    if link_path.endswith("arrays"):
        (path.parent / "manifest.json").write_text('{"files": {"arrays": [58, null]}}')
    (secret.parent / "3").mkdir(exist_ok=True)
    shutil.copy(secret, secret.parent / "3/arrays")
    for path in [trainer_dir, *trainer_dir.rglob("*")]:
        os.lchown(path, USER.pw_uid, USER.pw_gid)
    launch = {"checkpoints": str(trainer_dir / "checkpoints"), "command": list(TRAINER)}
    (paths.unit_dir("mine") / "launch.json").write_text(json.dumps({"spec": launch}))

    try:
        files = packed(paths, checkpoints=which)
    except (RunError, OSError):
        files = {}

    assert SECRET not in str(files)
    assert os.geteuid() == 0


def tmpfiles(lines: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-tmpfiles on these lines, as setup does to create directories."""
    command = ["systemd-tmpfiles", "--create", "-"]
    return subprocess.run(command, input=lines, capture_output=True, text=True, check=False)


@needs_tmpfiles
@pytest.mark.parametrize("below", ["cache", "deep/cache"])
def test_the_shared_cache_and_checkpoint_directories_follow_no_link(tmp_path, secret, below):
    """The trainer's user owns /mnt/shared, so a link there may point anywhere."""
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, USER.pw_uid, USER.pw_gid)
    (secret.parent / "cache").mkdir()
    link(shared / Path(below).parts[0], secret.parent if "/" in below else secret.parent / "cache")
    path = str(shared / below)

    assert run_start.usable_cache(path, USER) == ""
    result = tmpfiles(f'd "{path}" 0755 {USER.pw_uid} {USER.pw_gid} -')

    assert str(shared) in result.stderr
    assert (secret.parent / "cache").stat().st_uid == 0


def test_no_other_user_can_hold_the_lock_of_runs(tmp_path):
    lock = tmp_path / "run/locks/runs"

    with one_at_a_time(lock):
        tried = subprocess.run(
            ["flock", "--nonblock", str(lock), "true"],
            user=USER.pw_uid,
            group=USER.pw_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )

    assert "Permission denied" in tried.stderr
    assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_a_task_that_waits_too_long_for_the_lock_of_runs_names_the_process_that_has_it(tmp_path):
    lock = tmp_path / "run/locks/runs"
    with one_at_a_time(lock):
        pass
    with subprocess.Popen(
        ["flock", str(lock), "sh", "-c", "echo locked; read _"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(TimeoutError) as late, one_at_a_time(lock, wait_s=0.3):
            pass
        holder.stdin.close()

    assert late.value.filename == str(lock)
    assert f"flock (pid {holder.pid}) holds {lock}" in late.value.strerror
    assert f"(pid {os.getpid()})" not in late.value.strerror


@needs_tmpfiles
def test_setup_makes_root_own_a_tree_of_the_trainer_s_user(tmp_path):
    state = tmp_path / "state"
    variables = {"__base_user": USER.pw_name, "__base_state": str(state), "base_hugepages": ""}
    lines = rendered("base/tmpfiles.conf.j2", **variables).splitlines(keepends=True)
    (state / "runs/mine").mkdir(parents=True)
    for path in (state, state / "runs", state / "runs/mine"):
        os.chown(path, USER.pw_uid, USER.pw_gid)

    result = tmpfiles("".join(line for line in lines if str(state) in line))

    assert result.returncode == 0, result.stderr

    owners = {path.name: path.stat().st_uid for path in [state, *state.rglob("*")]}
    trainers = {name for name, owner in owners.items() if owner == USER.pw_uid}
    assert trainers == {"home", "jax-cache", "mine"}
    assert owners["state"] == owners["runs"] == 0


def test_a_link_that_root_made_is_followed(paths, tmp_path):
    """An administrator may keep /var/lib/tpufleet on another disk."""
    (tmp_path / "disk").mkdir()
    paths.state.rename(tmp_path / "disk/state")
    paths.state.symlink_to(tmp_path / "disk/state")

    run_start.start(LAUNCH, paths)

    assert (tmp_path / "disk/state/runs/mine/config.yml").read_text() == LAUNCH.spec.config
    assert run_unit.observe("mine", paths, unit=STOPPED)["attempt"] == 1


@pytest.mark.parametrize(("mode", "is_followed"), [(0o755, True), (0o777, False), (0o1777, True)])
def test_a_link_is_followed_only_if_no_other_user_can_replace_it(tmp_path, mode, is_followed):
    (tmp_path / "file").write_text("text")
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    (folder / "link").symlink_to(tmp_path)

    assert read_text(folder / "link/file", limit=4) == ("text" if is_followed else None)


def test_a_file_longer_than_the_limit_is_not_read_and_a_failed_write_leaves_no_file(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()

    assert read_text(tmp_path / "file", limit=3) is None
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", "text", 0o600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_an_existing_directory_gets_its_user_group_and_mode(tmp_path):
    folder, user = tmp_path / "cache", USER.pw_uid
    folder.mkdir(mode=0o700)
    os.chown(folder, user, 0)
    assert not is_directory(folder, user)

    make_directory(folder, user, 0o755)

    assert is_directory(folder, user)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_the_trainer_has_a_home_outside_the_directory_of_the_runs(paths):
    run_start.start(LAUNCH, paths)

    environment = (paths.unit_dir("mine") / "environment").read_text()
    assert f'HOME="{paths.state}/home"' in environment
    assert paths.home.stat().st_uid == USER.pw_uid
    assert paths.state.stat().st_uid == 0
