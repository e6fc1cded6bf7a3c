"""Lists of nodes, operations and catalog entries: pages, filters, all zones, unreachable zones."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localcloud.api.catalog import ACCELERATORS, ZONES
from localcloud.api.paging import select_page
from tests.localcloud.api.local_api import ZONE, code_of

OTHER = "us-central1-a"


def pages(api, path, key, **query):
    """Yield the items of each page of a list."""
    token = ""
    for _ in range(200):
        answer = api.get(path, **query, **({"pageToken": token} if token else {}))
        yield answer.get(key, [])
        token = answer.get("nextPageToken", "")
        if not token:
            return
    raise AssertionError(f"{path}: the list has more than 200 pages")


def items(api, path, key, **query):
    """Return the items of all pages of a list."""
    return list(itertools.chain.from_iterable(pages(api, path, key, **query)))


names = st.text("abc-9_.~", min_size=1, max_size=4)


@settings(max_examples=60)
@given(fleet=st.sets(names, max_size=25), size=st.integers(1, 7))
def test_pages_of_any_size_contain_every_item_once_in_order(fleet, size):
    items, listed, query = [{"name": name} for name in sorted(fleet)], [], {"pageSize": f"{size}"}
    while query.get("pageToken") != "":
        page, query["pageToken"] = select_page(items, query, "nodes")
        assert len(page) <= size
        listed += page

    assert listed == items


@settings(max_examples=40)
@given(fleet=st.sets(names, min_size=3, max_size=25), data=st.data())
def test_deleting_an_item_between_pages_hides_no_other_item(fleet, data):
    deleted = data.draw(st.sampled_from(sorted(fleet)))
    items = [{"name": name} for name in sorted(fleet)]
    first, token = select_page(items, {"pageSize": "2"}, "nodes")
    remaining = [item for item in items if item["name"] != deleted]
    second, _ = select_page(remaining, {"pageToken": token}, "nodes")

    assert {item["name"] for item in [*first, *second]} | {deleted} == fleet


def test_a_list_has_pages_and_dash_selects_all_zones(local_api):
    for name, zone in (("a", ZONE), ("b", ZONE), ("c", OTHER)):
        local_api.ready(name, zone, acceleratorType="v4-8")

    in_all_zones = list(pages(local_api, "locations/-/nodes", "nodes", pageSize=2))
    in_one_zone = list(pages(local_api, f"locations/{ZONE}/nodes", "nodes", page_size=1))

    assert [len(page) for page in in_all_zones] == [2, 1]
    listed = [node["name"].split("/")[-1] for node in itertools.chain(*in_all_zones)]
    assert listed == ["c", "a", "b"]
    assert [node["name"].split("/")[-1] for node in itertools.chain(*in_one_zone)] == ["a", "b"]
    assert in_all_zones[0][0] == local_api.node("c", OTHER)


@pytest.mark.parametrize(
    "query",
    [
        {"pageToken": "nonsense"},
        {"pageToken": "W10"},
        {"pageToken": "WyJvcGVyYXRpb25zIiwiYSJd"},  # a page token of another list
        {"pageSize": "-1"},
        {"pageSize": "many"},
        {"filter": "type"},
        {"filter": "type=v4-8 OR type=v4-16"},
        {"filter": "colour=red"},
        {"filter": "type eq v4-8"},  # syntax of Compute
        {"orderBy": "type sideways"},
        {"orderBy": "colour"},
    ],
)
def test_an_invalid_page_filter_or_order_is_refused(shared_api, query):
    error = shared_api.refused("GET", f"locations/{ZONE}/acceleratorTypes", **query)

    assert code_of(error) == (400, "INVALID_ARGUMENT")


def test_a_list_of_nodes_has_no_filter(shared_api):
    error = shared_api.refused("GET", "locations/-/nodes", filter="state=READY")

    assert code_of(error) == (400, "INVALID_ARGUMENT")


def test_an_unreachable_zone_is_named_and_its_nodes_are_omitted(local_api):
    local_api.ready("near")
    local_api.ready("far", OTHER)
    local_api.faults(unreachable=[OTHER])

    everywhere = local_api.get("locations/-/nodes")
    unreachable = local_api.get(f"locations/{OTHER}/nodes")
    error = local_api.refused("GET", f"locations/{OTHER}/nodes/far")

    assert [node["name"].split("/")[-1] for node in everywhere["nodes"]] == ["near"]
    assert everywhere["unreachable"] == [f"projects/local-fleet/locations/{OTHER}"]
    assert unreachable == {"unreachable": [f"projects/local-fleet/locations/{OTHER}"]}
    assert code_of(error) == (503, "UNAVAILABLE")
    local_api.faults(unreachable=[])
    assert len(local_api.get("locations/-/nodes")["nodes"]) == 2


def test_locations_are_listed_in_pages_and_can_be_read(shared_api):
    locations = items(shared_api, "locations", "locations", pageSize=7)

    assert [location["locationId"] for location in locations] == sorted(ZONES)
    name = f"projects/local-fleet/locations/{ZONE}"
    assert shared_api.get(f"locations/{ZONE}") == {"name": name, "locationId": ZONE}
    assert shared_api.call("GET", "locations/us-moon1-a").status_code == 404


def test_accelerator_types_are_listed_with_type_and_topology(shared_api):
    path = f"locations/{ZONE}/acceleratorTypes"

    types = items(shared_api, path, "acceleratorTypes", pageSize=20)

    assert {entry["type"] for entry in types} == set(ACCELERATORS)
    assert shared_api.get(f"{path}/v5litepod-16") == {
        "name": f"projects/local-fleet/{path}/v5litepod-16",
        "type": "v5litepod-16",
        "acceleratorConfigs": [{"type": "V5LITE_POD", "topology": "4x4"}],
    }
    assert shared_api.call("GET", f"{path}/v4-7").status_code == 404


def test_runtime_versions_are_listed_and_can_be_read(shared_api):
    path = f"locations/{ZONE}/runtimeVersions"

    versions = shared_api.get(path)["runtimeVersions"]

    assert "v2-alpha-tpuv6e" in [entry["version"] for entry in versions]
    assert shared_api.get(f"{path}/v2-alpha-tpuv5")["version"] == "v2-alpha-tpuv5"
    assert shared_api.call("GET", f"{path}/dos").status_code == 404


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("type=v4-8", ["v4-8"]),
        ("type=v2-*", ["v2-128", "v2-256", "v2-32", "v2-512", "v2-8"]),
        ('type="v4-8" AND accelerator_configs.topology=2x2x2', []),
        ("acceleratorConfigs.topology=2x2x1 AND type!=v5p-8", ["v4-8"]),
        ("type:6e-25", ["v6e-256"]),
    ],
)
def test_a_filter_selects_accelerator_types(shared_api, text, types):
    reply = shared_api.get(f"locations/{ZONE}/acceleratorTypes", filter=text)

    assert [entry["type"] for entry in reply.get("acceleratorTypes", [])] == types


def test_an_order_applies_to_all_pages(shared_api):
    path = f"locations/{ZONE}/acceleratorTypes"

    types = items(shared_api, path, "acceleratorTypes", pageSize=9, orderBy="type desc")

    assert [entry["type"] for entry in types] == sorted(ACCELERATORS, reverse=True)


def test_operations_of_a_deleted_node_are_listed_and_filtered(local_api):
    local_api.ready("one")
    deletion = local_api.ended(local_api.delete("one"))

    operations = items(local_api, "locations/-/operations", "operations", pageSize=1)
    done = local_api.get("locations/-/operations", filter="done=true AND metadata.verb=delete")
    locations = local_api.get("locations", filter=f"locationId={ZONE}")

    assert sorted(entry["metadata"]["verb"] for entry in operations) == ["create", "delete"]
    assert done["operations"] == [deletion]
    assert deletion["metadata"]["endTime"] >= deletion["metadata"]["createTime"]
    assert [entry["locationId"] for entry in locations["locations"]] == [ZONE]


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("v2-8", 1),
        ("v3-8", 1),
        ("v3-32", 4),
        ("v4-8", 1),
        ("v4-16", 2),
        ("v4-4096", 512),
        ("v5p-12288", 1536),
        ("v5litepod-1", 1),
        ("v5litepod-8", 1),
        ("v5litepod-16", 4),
        ("v6e-8", 1),
        ("v6e-256", 64),
    ],
)
def test_an_accelerator_type_has_googles_number_of_workers(name, workers):
    assert ACCELERATORS[name].workers == workers


def test_the_topology_of_every_accelerator_type_has_its_chips():
    for name, accelerator in ACCELERATORS.items():
        prefix, size = name.split("-")
        chips = int(size) if prefix in ("v5litepod", "v6e") else int(size) // 2
        assert accelerator.chips == chips, name
