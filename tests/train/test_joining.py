"""Agreement between processes: waiting for process 0, and save requests."""

import socket
import threading

import jax
import jax.numpy as jnp
import numpy as np

from train.core.sharding import BATCH_AXES
from train.run import mesh
from train.run.mesh import wait_for_listener


def test_a_process_waits_until_process_0_listens():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        host, port = bound.getsockname()
        assert not wait_for_listener(host, port, 0.3)
        accepted: list[bool] = []
        waiting = threading.Thread(
            target=lambda: accepted.append(wait_for_listener(host, port, 60))
        )
        waiting.start()
        waiting.join(0.3)
        assert accepted == []
        bound.listen()
        waiting.join(60)
    assert accepted == [True]


def test_a_save_request_is_dispatched_before_the_steps_that_follow(monkeypatch):
    dispatched = []
    monkeypatch.setattr(
        mesh, "_any", lambda requests: dispatched.append(requests) or jnp.any(requests)
    )
    devices = np.array(jax.devices()).reshape(1, -1)
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    with jax.set_mesh(jax.sharding.Mesh(devices, BATCH_AXES, axis_types=explicit)):
        request = mesh.SaveRequest(jax.sharding.get_mesh())

        assert request.agreed(0, requested=True) is False
        assert len(dispatched) == 1
        assert [request.agreed(call, requested=True) for call in range(1, 9)] == [False] * 7 + [
            True
        ]
