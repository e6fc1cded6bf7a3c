"""Losses and checkpoints do not depend on how parameters and batches are sharded."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests.train.sharded_training import MESHES, VARIANTS
from train.core.config import ConfigError, build
from train.run import mesh


@pytest.fixture(scope="module")
def observed(
    on_four_devices: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("spread")
    return on_four_devices("-m", "tests.train.sharded_training", str(directory))


@pytest.mark.parametrize("variant", [v for v, (_, names) in VARIANTS.items() if "2x2" in names])
def test_four_devices_give_the_losses_of_one_within_float32_rounding(
    observed: dict[str, Any], variant: str
):
    # Splash attention and microbatches do not change losses, so the variants that add them are not
    # trained on one device.
    losses = observed["losses"]
    same = "packed" if "packed" in variant else "plain"
    alone = losses[variant if "1" in losses[variant] else same]["1"]
    np.testing.assert_allclose(losses[variant]["2x2"], alone, rtol=2e-5)
    assert alone[-1] < alone[0]


@pytest.mark.parametrize(("name", "fsdp"), [(name, fsdp) for name, (_, fsdp) in MESHES.items()])
def test_a_checkpoint_is_loaded_on_any_mesh(observed: dict[str, Any], name: str, fsdp: int):
    assert observed["restored"][name] == {"is_same": True, "is_sharded": fsdp > 1}


def test_fsdp_that_does_not_divide_the_devices_is_refused():
    cfg = build({"batch": 8, "compute": {"fsdp": 3}})
    with pytest.raises(ConfigError, match=r"fsdp: 3 does not divide the number of devices \(1\)"):
        mesh.make_training_mesh(cfg, jax.devices()[:1])


def tpus(slices: int, axes: tuple[int, int, int]) -> list[SimpleNamespace]:
    """Fake TPU v4 devices of several slices, with coordinates as JAX reports them."""
    slice_chips = math.prod(axes)
    return [
        SimpleNamespace(
            id=s * slice_chips + i,
            platform="tpu",
            device_kind="TPU v4",
            slice_index=s,
            process_index=s,
            coords=tuple(int(n) for n in np.unravel_index(i, axes, order="F")),
            core_on_chip=0,
        )
        for s in range(slices)
        for i in range(slice_chips)
    ]


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("axes", [(2, 2, 1), (2, 4, 1), (4, 4, 1), (8, 8, 1), (2, 2, 4), (4, 4, 4)])
def test_each_divisor_of_a_slice_gives_fsdp_groups_of_neighbors(axes, slices):
    devices = math.prod(axes)
    for fsdp in (n for n in range(1, devices + 1) if devices % n == 0):
        grid = mesh.device_grid(tpus(slices, axes), fsdp)
        assert grid.shape == (slices * devices // fsdp, fsdp)
        for group in grid:
            corners = np.array([device.coords for device in group])
            extent = corners.max(axis=0) - corners.min(axis=0) + 1
            assert math.prod(extent) == fsdp, "the group does not fill a box"
            assert len({device.slice_index for device in group}) == 1


def test_only_the_data_axis_crosses_slices():
    placed = mesh.device_grid(tpus(slices=2, axes=(2, 2, 1)), fsdp=2)
    assert placed.shape == (4, 2)
    assert [{d.slice_index for d in row} for row in placed] == [{0}, {0}, {1}, {1}]


def test_fsdp_null_means_all_devices_of_a_slice():
    grid = mesh.device_grid(tpus(slices=2, axes=(2, 2, 1)), fsdp=None)
    assert [{d.slice_index for d in row} for row in grid] == [{0}, {1}]


@pytest.mark.parametrize("fsdp", [3, 8])
def test_fsdp_that_does_not_divide_a_slice_is_refused(fsdp: int):
    message = rf"fsdp: {fsdp} does not divide the number of devices of a slice \(4\)"
    with pytest.raises(ConfigError, match=message):
        mesh.device_grid(tpus(slices=2, axes=(2, 2, 1)), fsdp)
