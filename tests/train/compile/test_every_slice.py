"""Every preset, with any ``fsdp``, compiles for every kind of slice or is refused in one line.

This takes hours, so it runs only in make test-compile (TPUFLEET_COMPILE=all). The tests compile at
optimization level O1, which takes a quarter of the time. The program is slower, but needs about the
same memory: modern.yml on v5e-16 needs 8.01 GiB per chip, and 8.17 GiB at the default level.
"""

import os
import subprocess

import pytest

from harness.trainer_processes import PROJECT
from train.compile import slices

pytestmark = pytest.mark.skipif(
    os.environ.get("TPUFLEET_COMPILE") != "all", reason="takes hours: make test-compile"
)

PYTHON = PROJECT / ".venv-tpu" / "bin" / "python"
SLICES = [("v4-32", 1), ("v5e-16", 1), ("v5p-32", 1), ("v5p-128", 1), ("v6e-64", 1), ("v5p-32", 2)]
CONFIGS = sorted((PROJECT / "train" / "configs").glob("*.yml"))


@pytest.mark.parametrize(
    ("config", "topology", "count", "fsdp"),
    [
        pytest.param(config, topology, count, fsdp, id=f"{config.stem}-{count}x{topology}-{fsdp}")
        for config in CONFIGS
        for topology, count in SLICES
        for fsdp in range(1, slices.parse(topology).chips + 1)
        if slices.parse(topology).chips % fsdp == 0
    ],
)
def test_a_preset_compiles_or_is_refused_in_one_line(config, topology, count, fsdp):
    slice_options = ("--topology", topology, "--slices", str(count))
    done = subprocess.run(
        [PYTHON, "-m", "train", "compile", config, f"compute.fsdp={fsdp}", *slice_options],
        cwd=PROJECT,
        env={**os.environ, "JAX_OPTIMIZATION_LEVEL": "O1"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        assert "estimated step" in done.stdout
    else:
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("train: ")
        assert done.stderr.count("\n") == 1
