"""Prove that PyTorch/XLA computes on this worker's devices, which PJRT_DEVICE chooses."""

import ctypes
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

SIDE = 128

# torch_xla works only with the torch version that it was built with, but its package metadata does
# not require that version.
torch_version, xla_version = version("torch"), version("torch_xla")
if torch_version.split(".")[:2] != xla_version.split(".")[:2]:
    fix = f"Require torch=={'.'.join(xla_version.split('.')[:2])}.*"
    sys.exit(f"torch_xla {xla_version} does not work with torch {torch_version}. {fix}")

# torch_xla needs libpython, which the dynamic loader does not find if uv installed Python.
minor = sys.version_info.minor
for library in Path(sys.base_prefix, "lib").glob(f"libpython3.{minor}.so.*"):
    ctypes.CDLL(str(library))

import torch  # noqa: E402 - the versions are checked first
import torch_xla  # noqa: E402
import torch_xla.runtime  # noqa: E402

platform = torch_xla.runtime.device_type().lower()
if platform != os.environ["PJRT_DEVICE"].lower():
    sys.exit(f"torch_xla uses a {platform}, expected a {os.environ['PJRT_DEVICE'].lower()}")
ones = torch.ones(SIDE, SIDE, device="xla")
total = (ones @ ones).sum().item()
if total != SIDE**3:
    sys.exit(f"a matmul with torch_xla returned the sum {total}, expected {SIDE**3}")
versions = {"torch_xla": xla_version, "torch": torch_version}
print(json.dumps({**versions, "devices": torch_xla.device_count()}))
