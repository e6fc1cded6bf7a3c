"""Prove that JAX works on this worker: it finds the devices."""

import json

import jax

print(
    json.dumps(
        {
            "jax": jax.__version__,
            "devices": jax.local_device_count(),
        }
    )
)
