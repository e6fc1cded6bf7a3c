"""The table of accelerator types and runtime versions agrees with the local cloud's catalog."""

import re

import pytest

from localcloud.api.catalog import ACCELERATORS, RUNTIME_VERSIONS
from tests.docs.suggestions import ROOT

CELL = re.compile(r"`([^`]+)`")
ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs/fleets.md").read_text().splitlines()
    if re.match(r"\| `v\d", line)
]
RULES = {
    "cores, two per chip; 1 worker per 8 cores": lambda number: (number // 2, number // 8),
    "chips; 1 worker up to 8 chips, otherwise 1 worker per 4": lambda number: (
        number,
        1 if number <= 8 else number // 4,
    ),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: CELL.findall(row[0])[0])
def test_a_row_names_existing_types_with_their_chips_and_workers(row):
    types, rule, runtime = row
    for name in CELL.findall(types):
        accelerator = ACCELERATORS[name]
        chips, workers = RULES[rule](int(name.rpartition("-")[2]))
        assert (accelerator.chips, accelerator.workers) == (chips, workers)
    assert CELL.findall(runtime)[0] in RUNTIME_VERSIONS


def test_each_generation_has_a_row():
    prefixes = {CELL.findall(row[0])[0].partition("-")[0] for row in ROWS}
    assert prefixes == {name.partition("-")[0] for name in ACCELERATORS}
