"""A process that comes before process 0 looks out for it."""

import socket
import threading

import jax
import jax.numpy as jnp
import numpy as np

from train import mesh
from train.mesh import listens
from train.sharding import BATCH


def test_a_process_that_comes_first_waits_until_process_0_listens():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        host, port = bound.getsockname()
        assert not listens(host, port, 0.3)
        came: list[bool] = []
        waiting = threading.Thread(target=lambda: came.append(listens(host, port, 60)))
        waiting.start()
        waiting.join(0.3)
        assert came == []
        bound.listen()
        waiting.join(60)
    assert came == [True]


def test_a_wish_is_put_ahead_of_the_steps_that_follow(monkeypatch):
    asked = []
    monkeypatch.setattr(mesh, "_any", lambda wishes: asked.append(wishes) or jnp.any(wishes))
    devices = np.array(jax.devices()).reshape(1, -1)
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    with jax.set_mesh(jax.sharding.Mesh(devices, BATCH, axis_types=explicit)):
        wish = mesh.Wish(jax.sharding.get_mesh())

        assert wish.granted(0, wished=True) is False
        assert len(asked) == 1
        assert [wish.granted(call, wished=True) for call in range(1, 9)] == [False] * 7 + [True]
