"""However parameters and batches are spread over devices, the model learns the same."""

import json
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from harness.trainer_processes import PROJECT, Compiled, clean_environment
from tests.train.spread_training import ENVIRONMENT, MESHES, VARIANTS
from train import mesh
from train.config import ConfigError, build


@pytest.fixture(scope="module")
def seen(
    compiled: Compiled, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[float]]]:
    command = [sys.executable, "-m", "tests.train.spread_training"]
    done = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("spread"))],
        cwd=PROJECT,
        env=clean_environment() | compiled.environment | ENVIRONMENT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SPREAD = [(v, name) for v, (_, names) in VARIANTS.items() for name in names if name != "1"]


@pytest.mark.parametrize(("variant", "devices"), SPREAD)
def test_four_devices_learn_what_one_learns_to_the_rounding_of_float32(
    seen: dict[str, dict[str, list[float]]], variant: str, devices: str
):
    # Attention by splash is the same model: one device need not be asked for it, too.
    alone = seen["plain" if variant == "splash" else variant]["1"]
    np.testing.assert_allclose(seen[variant][devices], alone, rtol=2e-5)
    assert alone[-1] < alone[0] - 0.05


@pytest.mark.parametrize("devices", MESHES)
def test_what_was_saved_spread_2_by_2_goes_on_however_it_is_spread_next(
    seen: dict[str, dict[str, list[float]]], devices: str
):
    np.testing.assert_allclose(seen["restored"][devices], seen["plain"]["1"][1:2], rtol=2e-5)


def test_parameters_that_the_devices_cannot_share_evenly_are_refused():
    cfg = build({"batch": 8, "compute": {"fsdp": 3}})
    with pytest.raises(ConfigError, match=r"fsdp: must divide the number of devices \(1\), not 3"):
        mesh.make(cfg, jax.devices()[:1])


def tpus(slices: int, each: int) -> list[SimpleNamespace]:
    """What JAX tells of the chips of some TPU v4 slices, as far as their place is concerned."""
    return [
        SimpleNamespace(
            id=s * each + i,
            platform="tpu",
            device_kind="TPU v4",
            slice_index=s,
            process_index=s,
            coords=(i % 2, i // 2, 0),
            core_on_chip=0,
        )
        for s in range(slices)
        for i in range(each)
    ]


def test_the_data_axis_goes_over_slices_and_parameters_stay_within_one():
    placed = mesh.arranged(tpus(slices=2, each=4), fsdp=2)
    assert placed.shape == (4, 2)
    assert [{d.slice_index for d in row} for row in placed] == [{0}, {0}, {1}, {1}]


def test_parameters_spread_over_slices_are_refused():
    with pytest.raises(ConfigError, match=r"must divide the devices of a slice \(4\), not 8"):
        mesh.arranged(tpus(slices=2, each=4), fsdp=8)
