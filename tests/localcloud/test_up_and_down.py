"""Bringing clouds up and down: one at a time, and without touching other files."""

import argparse
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcloud import cli, cloud, settings
from localcloud.failure import CloudError
from localcloud.local_cloud import LocalCloud, images_directory
from localcloud.machines import image, mounts
from localcloud.settings import Settings

YES = argparse.Namespace(yes=True)


@pytest.fixture
def local_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCloud:
    """A cloud that is not running; its directories and the host's lock are in ``tmp_path``."""
    monkeypatch.setenv("TPUFLEET_LOCALCLOUD_DIR", str(tmp_path / "clouds"))
    monkeypatch.setattr(cloud, "_HOST_LOCK", tmp_path / "lock")
    local_cloud = LocalCloud.of("one")
    local_cloud.machines.mkdir(parents=True)
    local_cloud.shared.mkdir()
    return local_cloud


@pytest.fixture
def taken_down(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the clouds whose directory a fake ``cloud.down`` has removed."""
    names = []

    def down(local_cloud: LocalCloud, *, report: cloud.Report) -> None:
        names.append(local_cloud.name)
        cloud._remove_directory(local_cloud)

    monkeypatch.setattr(cloud, "down", down)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return names


def test_a_second_cloud_waits_for_the_first_with_a_message(local_cloud: LocalCloud):
    entered, leave, output = threading.Event(), threading.Event(), []

    def hold() -> None:
        with cloud._lock_host(print):
            entered.set()
            leave.wait(30)

    def report(line: str) -> None:
        output.append((line, first.is_alive()))
        leave.set()

    first = threading.Thread(target=hold)
    first.start()
    assert entered.wait(30)
    with cloud._lock_host(report):
        first.join(30)
    assert output == [("waiting: another local cloud is starting or stopping on this host", True)]


def test_building_a_root_file_system_does_not_block_other_clouds(
    local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
):
    waited = []

    def make(*_: object) -> Path:
        with cloud._lock_host(waited.append):
            return local_cloud.directory

    monkeypatch.setattr(cloud, "_image", make)
    for unneeded in ("check_root", "_check_tools"):
        monkeypatch.setattr(cloud, unneeded, lambda *_: None)
    chosen = Settings("one", 8470, "198.18.4.0/22", "/image")
    monkeypatch.setattr(cloud, "_up", lambda *_: chosen)
    assert cloud.up(local_cloud, report=print) == chosen
    assert waited == []


def test_a_cloud_does_not_start_without_its_root_file_system(
    local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
):
    """``make clean`` may remove the root file system between its build and its use."""
    monkeypatch.setattr(cloud, "_image", lambda *_: local_cloud.directory / "removed")
    for unneeded in ("check_root", "_check_tools"):
        monkeypatch.setattr(cloud, unneeded, lambda *_: None)
    start = cloud.kernel_limits, "raise_for_many_machines"
    monkeypatch.setattr(*start, lambda: pytest.fail("started"))
    with pytest.raises(CloudError, match=r"removed was removed while .* Run again: .* up$"):
        cloud.up(local_cloud, report=print)


def test_two_clouds_build_the_same_root_file_system_once(
    local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
):
    builds, output, waiting = [], [], threading.Event()

    def build(directory: Path, *_: object) -> None:
        assert waiting.wait(30)
        builds.append(directory)
        directory.mkdir()

    def report(line: str) -> None:
        if line.startswith("waiting"):
            output.append(line)
            waiting.set()

    monkeypatch.setattr(image, "configured_sources", list)
    monkeypatch.setattr(image, "base_lines", lambda *_: ("trixie", []))
    monkeypatch.setattr(image, "_output", lambda _command: "")
    monkeypatch.setattr(image, "make_tree", build)
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(image.ensure, (report, report))
    assert builds == [first] == [second]
    assert output == ["waiting: another local cloud is building the machines' root file system"]


def test_clean_removes_only_clouds_and_images(local_cloud: LocalCloud, taken_down: list[str]):
    clouds = local_cloud.directory.parent
    for removed in (
        "images/trixie-0123456789ab/etc",
        "images/trixie-0123456789ab.partial-7",
        "cut",
    ):
        (clouds / removed).mkdir(parents=True)
    for retained in ("images/holiday", "papers/2026"):
        (clouds / retained).mkdir(parents=True)
    with pytest.raises(CloudError, match=r"it holds other files \(images, papers\)"):
        cli.clean(local_cloud, YES)
    assert taken_down == ["cut", "one"]
    assert [entry.name for entry in (clouds / "images").iterdir()] == ["holiday"]
    assert (clouds / "papers/2026").is_dir()


def test_clean_removes_the_directory_if_it_is_empty(local_cloud: LocalCloud, taken_down: list[str]):
    cli.clean(local_cloud, YES)
    assert not local_cloud.directory.parent.exists()


def test_unmounting_gives_up_after_a_lazy_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mounts, "below", lambda directory: [directory / "stuck"])
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    mounts.unmount_below(tmp_path)


def test_the_partial_image_of_a_killed_build_is_removed_by_the_next(
    local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
):
    images = local_cloud.directory.parent / "images"
    (images / "trixie-0123456789ab.partial-7/usr").mkdir(parents=True)
    monkeypatch.setattr(image, "_lines", lambda command: iter(["I: done"]))
    image.make_tree(images / "trixie-0123456789ab", [], print, lambda root: root.mkdir())
    assert [entry.name for entry in images.iterdir()] == ["trixie-0123456789ab"]


def test_a_relative_directory_serves_the_same_cloud(local_cloud, monkeypatch):
    served = []
    monkeypatch.setattr(cloud, "serve", served.append)
    monkeypatch.chdir(local_cloud.directory.parents[1])

    assert cli.main(["serve", "--directory", "clouds/one"]) == 0

    assert [(cloud_, cloud_.tag) for cloud_ in served] == [(local_cloud, local_cloud.tag)]


def test_no_cloud_has_the_name_of_the_images_directory(local_cloud):
    with pytest.raises(CloudError, match="--name"):
        LocalCloud.of(images_directory().name)


@pytest.mark.parametrize(
    "file",
    [
        "bucket/local-fleet/checkpoints/40",
        "disks/us-central2-b/data",
        "fleet/runs/a.json",
        "shared/runs/checkpoint",
    ],
)
def test_stored_files_are_not_removed_without_confirmation(
    local_cloud, taken_down, monkeypatch, capsys, file
):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    (local_cloud.directory / file).parent.mkdir(parents=True)
    (local_cloud.directory / file).touch()

    with pytest.raises(CloudError, match="nothing was removed"):
        cli.down(local_cloud, argparse.Namespace(yes=False))

    assert taken_down == []
    assert file.split("/")[0] in capsys.readouterr().out


@pytest.mark.parametrize("error", [EOFError, KeyboardInterrupt])
def test_no_answer_to_the_confirmation_removes_nothing(
    local_cloud, taken_down, monkeypatch, capsys, error
):
    def interrupt(_: str) -> str:
        raise error

    (local_cloud.machines / "m").mkdir()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", interrupt)

    assert cli.main(["--name", "one", "down"]) == 1

    assert taken_down == []
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "option",
    ["--port=99999", "--port=-1", "--port=x", "--subnet=198.18.4.0/29", "--subnet=10.0.0.0/8"],
)
def test_an_impossible_port_or_subnet_is_an_invalid_argument(option):
    with pytest.raises(SystemExit) as ended:
        cli.parser().parse_args(["up", option])
    assert ended.value.code == 2


def test_the_user_who_called_sudo_owns_the_files_that_clients_need(local_cloud, monkeypatch):
    owners = {}
    monkeypatch.setattr("os.chown", lambda path, uid, gid: owners.update({path: uid}))
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setenv("SUDO_GID", "1000")
    settings.write(local_cloud, Settings("one", 8470, "198.18.4.0/22", "/image"))
    local_cloud.bucket_endpoint.touch()

    settings.hand_over(local_cloud)

    assert {local_cloud.settings, local_cloud.bucket_endpoint} <= set(owners)


def test_settings_of_another_user_are_an_error_with_a_next_step(local_cloud, monkeypatch):
    def refuse(_: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(CloudError, match="sudo"):
        settings.read(local_cloud)
