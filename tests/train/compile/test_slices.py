"""Accelerator types and the shapes of their slices."""

import math

import pytest

from train.compile import slices
from train.compile.slices import Slice


@pytest.mark.parametrize(
    ("name", "text", "chips"),
    [
        ("v4-32", "v4:2x2x4", 16),
        ("v5e-16", "v5e:4x4", 16),
        ("v5litepod-16", "v5e:4x4", 16),
        ("v5p-128", "v5p:4x4x4", 64),
        ("v6e-64", "v6e:8x8", 64),
        ("v5p:4x4x12", "v5p:4x4x12", 192),
    ],
)
def test_parse_returns_the_slice_of_a_name(name: str, text: str, chips: int):
    parsed = slices.parse(name)
    assert (str(parsed), parsed.chips) == (text, chips)
    assert slices.parse(str(parsed)) == parsed


@pytest.mark.parametrize("version", slices.SHAPES)
def test_a_shape_has_the_number_of_chips_of_its_accelerator_type(version: str):
    for chips, shape in slices.SHAPES[version].items():
        assert math.prod(shape) == chips
        number = chips * slices.CORES_PER_NUMBER[version]
        assert slices.parse(f"{version}-{number}") == Slice(version, shape)


@pytest.mark.parametrize(
    "name",
    [
        "v5p-9",
        "v5p-127",
        "v9-8",
        "v5e-0",
        "v5e",
        "v5e:4x4x4",
        "v5p:0x4x4",
        "v5p:4x4",
        "",
        "v5e-16 ",
    ],
)
def test_an_unknown_name_is_refused_with_the_known_names(name: str):
    with pytest.raises(ValueError, match=r"v4-8, 16, .*v6e-1, 4, .* not '"):
        slices.parse(name)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("v5e-1", 1),
        ("v5e-4", 2),
        ("v5e-16", 2),
        ("v5e-256", 4),
        ("v6e-128", 3),
        ("v5p-8", 2),
        ("v5p-32", 3),
        ("v5p-128", 6),
    ],
)
def test_links_counts_the_links_of_the_worst_connected_chip(name: str, links: int):
    assert slices.parse(name).links == links
