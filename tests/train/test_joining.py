"""Connection of a run's processes, and SaveRequest, with which they agree to save at a step."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.core.sharding import BATCH_AXES
from train.run import mesh
from train.run.contract import Contract


def test_a_save_request_is_dispatched_before_the_steps_that_follow(monkeypatch):
    dispatched = []
    monkeypatch.setattr(
        mesh, "_any", lambda requests: dispatched.append(requests) or jnp.any(requests)
    )
    devices = np.array(jax.devices()).reshape(1, -1)
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    with jax.set_mesh(jax.sharding.Mesh(devices, BATCH_AXES, axis_types=explicit)):
        request = mesh.SaveRequest(jax.sharding.get_mesh())

        assert request.should_save(0, is_requested=True) is False
        assert len(dispatched) == 1
        assert [request.should_save(call, is_requested=True) for call in range(1, 9)] == [
            False
        ] * 7 + [True]


@pytest.mark.usefixtures("no_mesh")
def test_a_save_cancels_a_pending_request():
    request = mesh.SaveRequest(mesh.make_mesh(jax.devices()))
    assert not request.should_save(0, is_requested=True)
    request.cancel()
    assert not any(request.should_save(call, is_requested=False) for call in range(1, 17))


def joined(monkeypatch: pytest.MonkeyPatch, coordinator: str) -> dict[str, Any]:
    """Join a run of two processes; return the options that JAX gets."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: given.update(options))
    mesh.join(Contract("r", Path("run"), Path("run"), coordinator, 2, 0), heartbeat_timeout=10)
    return given


def test_a_process_waits_long_for_others_that_still_download_and_not_for_a_lost_one(monkeypatch):
    given = joined(monkeypatch, "127.0.0.1:1")
    assert given["initialization_timeout"] >= 3600
    assert given["heartbeat_timeout_seconds"] == 10


@pytest.mark.parametrize(
    ("coordinator", "address"),
    [
        ("10.0.0.2:8479", "10.0.0.2:8479"),
        ("[fd00::2]:8479", "[fd00::2]:8479"),
        ("pod-w0:8479", None),
    ],
)
def test_the_coordinator_listens_only_on_its_own_address(monkeypatch, coordinator, address):
    assert joined(monkeypatch, coordinator)["coordinator_bind_address"] == address


@pytest.mark.parametrize(("excluded", "expected"), [("", "10.0.0.2"), ("a,b", "a,b,10.0.0.2")])
def test_processes_connect_to_the_coordinator_without_a_proxy(monkeypatch, excluded, expected):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", excluded)
    monkeypatch.setenv("no_grpc_proxy", "")
    joined(monkeypatch, "10.0.0.2:8479")
    assert os.environ["no_grpc_proxy"] == expected  # noqa: SIM112 - gRPC reads this name
