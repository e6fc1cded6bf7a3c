"""SaveRequest, with which all processes agree to save a checkpoint at the same step."""

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


def test_a_process_waits_long_for_others_that_still_download(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: given.update(options))
    mesh.join(Contract("r", tmp_path, tmp_path, "127.0.0.1:1", 2, 0), 10)
    assert given["initialization_timeout"] >= 3600
