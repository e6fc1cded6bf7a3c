"""All TPUs of a fleet are created exactly once, although three in ten requests fail."""

import re

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import TpuApi

from tests.collections.local_client import make
from tests.collections.test_fleet import DEMO
from tests.localcloud.api.local_api import LocalApi

SWEEP = DEMO | {"name": "sweep", "accelerator_type": "v4-8", "count": 8}
NAMES = [f"sweep-{number}" for number in range(8)]


@pytest.mark.parametrize("seed", range(20))
def test_eight_tpus_are_created_once_each(api: TpuApi, local_api: LocalApi, seed: int):
    mix = {"seed": seed, "share": 0.3, "codes": [429, 503], "drops": True}
    local_api.faults(mix=[mix])
    results = make(api, SWEEP, timeout=60)
    assert [result.msg for result in results if result.failed] == []
    local_api.faults(mix=[])
    assert re.search(r" (429|503|0) nodes\.", local_api.log()), "no call met a fault"
    nodes = local_api.get("locations/-/nodes")["nodes"]
    assert sorted(node["name"].rsplit("/", 1)[1] for node in nodes) == NAMES
    assert {node["state"] for node in nodes} == {"READY"}
    assert len({node["id"] for node in nodes}) == len(NAMES)
    assert not re.search(r"request DELETE .*/nodes/", local_api.log())
    second_results = make(api, SWEEP, timeout=60)
    assert [result.changed for result in second_results] == [False] * 8
