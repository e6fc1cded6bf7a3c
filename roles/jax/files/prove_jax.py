"""Prove that JAX works on this worker and finds its devices."""

import json

import jax

print(json.dumps({"jax": jax.__version__, "devices": jax.local_device_count()}))
