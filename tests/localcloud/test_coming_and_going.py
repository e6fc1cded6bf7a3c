"""What a cloud does to its host as it comes and goes: one at a time, and to its own things only."""

import argparse
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcloud import cli, cloud, settings
from localcloud.failure import CloudError
from localcloud.machines import image, mounts
from localcloud.place import Place
from localcloud.settings import Settings

YES = argparse.Namespace(yes=True)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A cloud's directory without a cloud; the host is left alone."""
    monkeypatch.setenv("TPUFLEET_LOCALCLOUD_DIR", str(tmp_path / "clouds"))
    monkeypatch.setattr(cloud, "_HOST_LOCK", tmp_path / "lock")
    place = Place.of("one")
    place.machines.mkdir(parents=True)
    place.shared.mkdir()
    return place


@pytest.fixture
def taken_down(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The clouds that were taken down, of which only the directories are."""
    names = []

    def down(place: Place, *, say: cloud.Say) -> None:
        names.append(place.name)
        cloud._remove_directory(place)

    monkeypatch.setattr(cloud, "down", down)
    return names


def test_a_second_cloud_waits_for_the_first_and_says_so(place: Place):
    entered, leave, said = threading.Event(), threading.Event(), []

    def hold() -> None:
        with cloud._alone_on_host(print):
            entered.set()
            leave.wait(30)

    def say(line: str) -> None:
        said.append((line, first.is_alive()))
        leave.set()

    first = threading.Thread(target=hold)
    first.start()
    assert entered.wait(30)
    with cloud._alone_on_host(say):
        first.join(30)
    assert said == [("waiting: another local cloud is coming up or going down on this host", True)]


def test_a_root_file_system_in_the_making_keeps_no_other_cloud_waiting(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    waited = []

    def make(*_: object) -> Path:
        with cloud._alone_on_host(waited.append):
            return place.directory

    monkeypatch.setattr(cloud, "_image", make)
    for unneeded in ("_check_root", "_check_tools"):
        monkeypatch.setattr(cloud, unneeded, lambda *_: None)
    chosen = Settings("one", 8470, "198.18.4.0/22", "/image")
    monkeypatch.setattr(cloud, "_up", lambda *_: chosen)
    assert cloud.up(place, port=None, subnet=None, say=print) == chosen
    assert waited == []


def test_a_root_file_system_that_went_away_before_its_use_is_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    made: list[Path] = []

    def make(*_: object) -> Path:
        made.append(place.directory.parent / f"images/{len(made)}")
        if len(made) == 2:
            made[1].mkdir(parents=True)
        return made[-1]

    def come_up(*_: object, **__: object) -> None:
        raise CloudError("far enough")

    monkeypatch.setattr(cloud, "_image", make)
    for unneeded in ("_check_root", "_check_tools"):
        monkeypatch.setattr(cloud, unneeded, lambda *_: None)
    monkeypatch.setattr(cloud.kernel_limits, "raise_for_many_machines", come_up)
    with pytest.raises(CloudError, match="far enough"):
        cloud.up(place, port=None, subnet=None, say=print)
    assert len(made) == 2


def test_two_that_want_the_same_root_file_system_make_it_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    builds, said, waiting = [], [], threading.Event()

    def build(wanted: Path, *_: object) -> None:
        assert waiting.wait(30)
        builds.append(wanted)
        wanted.mkdir()

    def say(line: str) -> None:
        said.append(line)
        waiting.set()

    monkeypatch.setattr(image, "configured_sources", list)
    monkeypatch.setattr(image, "base_lines", lambda *_: ("trixie", []))
    monkeypatch.setattr(image, "_output", lambda _command: "")
    monkeypatch.setattr(image, "_build", build)
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(image.ensure, (say, say))
    assert builds == [first] == [second]
    assert said == ["waiting: another local cloud is building the machines' root file system"]


def test_who_waited_for_a_cache_that_was_removed_holds_the_new_one(place: Place):
    entered = threading.Event()

    def wait(_line: str) -> None:
        entered.set()

    def hold() -> bool:
        with image.alone(wait):
            return images.exists()

    images = place.directory.parent / "images"
    with ThreadPoolExecutor() as pool, image.alone(print):
        other = pool.submit(hold)
        assert entered.wait(30)
        images.rmdir()
    assert other.result()


def test_clean_removes_clouds_and_images_and_nothing_that_lies_beside_them(
    place: Place, taken_down: list[str]
):
    clouds = place.directory.parent
    for ours in ("images/trixie-0123456789ab/etc", "images/trixie-0123456789ab.partial-7", "cut"):
        (clouds / ours).mkdir(parents=True)
    for theirs in ("images/holiday", "papers/2026"):
        (clouds / theirs).mkdir(parents=True)
    with pytest.raises(CloudError, match=r"it holds other files \(images, papers\)"):
        cli.clean(place, YES)
    assert taken_down == ["cut", "one"]
    assert [entry.name for entry in (clouds / "images").iterdir()] == ["holiday"]
    assert (clouds / "papers/2026").is_dir()


def test_clean_leaves_nothing_where_all_is_its_own(place: Place, taken_down: list[str]):
    cli.clean(place, YES)
    assert not place.directory.parent.exists()


def test_what_machines_share_is_not_removed_unasked(
    place: Place, taken_down: list[str], monkeypatch: pytest.MonkeyPatch
):
    (place.shared / "checkpoints").mkdir()
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(CloudError, match="nothing was removed"):
        cli.down(place, argparse.Namespace(yes=False))
    assert taken_down == []


def test_a_mount_that_cannot_be_unmounted_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mounts, "below", lambda directory: [directory / "stuck"])
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    mounts.unmount_below(tmp_path)


def test_a_half_made_image_of_a_killed_build_goes_with_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    images = place.directory.parent / "images"
    (images / "trixie-0123456789ab.partial-7/usr").mkdir(parents=True)
    monkeypatch.setattr(image, "_lines", lambda command: iter(["I: done"]))
    monkeypatch.setattr(image, "_finish", lambda root, host_pem: root.mkdir())
    image._build(images / "trixie-0123456789ab", "trixie", [], [], "", print)
    assert [entry.name for entry in images.iterdir()] == ["trixie-0123456789ab"]


def test_settings_read_back_as_they_were_written(place: Place):
    chosen = Settings("one", 8470, "198.18.4.0/22", "/image")
    settings.write(place, chosen)
    assert settings.read(place) == chosen
