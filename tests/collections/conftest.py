"""Fixtures of the collection's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.http import Polling
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.session import ApiSettings
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi

from harness.emulated_storage import emulated_storage
from harness.playbooks import environment_of
from harness.scripted_api import ScriptedApi, serving
from harness.stored_output import QUICK
from tests.collections.local_client import cloud_of
from tests.localcloud.api.local_api import LocalApi


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedApi]:
    """A server on loopback that gives the answers that the test sets."""
    with serving(tmp_path) as api:
        yield api


@pytest.fixture
def client(scripted: ScriptedApi, clock: Clock) -> TpuApi:
    """A client of the scripted server; its waits take no time."""
    return TpuApi(ApiSettings.of(scripted.api), polling=Polling(clock.sleep, clock))


@pytest.fixture
def api(local_api: LocalApi) -> TpuApi:
    """A client of the local cloud's API."""
    return cloud_of(local_api)


@pytest.fixture
def environment(local_api: LocalApi) -> dict[str, str]:
    """The environment variables of playbooks that use the local cloud."""
    return environment_of(local_api)


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    """The address of an emulator of Cloud Storage with the bucket ``fleet``."""
    with emulated_storage() as address:
        yield address


@pytest.fixture
def bucket_api(emulator: str) -> dict[str, str]:
    """The inventory variable ``tpu_api`` with the emulator as the storage API."""
    return {"project": "local-fleet", "endpoint": emulator, "storage_endpoint": emulator}


@pytest.fixture
def bucket(emulator: str, request: pytest.FixtureRequest) -> Bucket:
    """A directory for this test in the bucket of the emulator."""
    return Bucket(f"gs://fleet/{request.node.name}", address=emulator, retry=QUICK)
