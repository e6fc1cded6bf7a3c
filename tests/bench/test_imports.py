"""Every benchmark can be imported. Most of them are not run by any other test."""

import importlib

import pytest

from localcloud.local_cloud import PROJECT_ROOT

NEED_PYTORCH = {"bitesized_torch", "train_gpu_torch"}
NAMES = {file.stem for file in (PROJECT_ROOT / "bench").glob("*.py")} - NEED_PYTORCH


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_benchmark_can_be_imported(name: str):
    importlib.import_module(f"bench.{name}")
