"""Inventory hosts made from the API's nodes: names, groups and variables."""

import json
import re
import shlex
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.host_keys import KnownHost
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.nodes import parse_node
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.queued_resource import (
    parse_queued_resource,
)
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.shapes import (
    shape_of,
    type_of_config,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.hosts import (
    HostOptions,
    build_hosts,
    check_unique_names,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.slices import slices_of
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.scripted_api import node
from tests.localcloud.api.google_schema import document


def hosts_of(*nodes, known=(), **options):
    known_hosts = {alias: KnownHost(alias, {"ssh-ed25519": "AAAA"}, name) for alias, name in known}
    parsed_nodes = [parse_node(data) for data in nodes]
    return build_hosts(parsed_nodes, HostOptions(**options), known_hosts, slices_of(parsed_nodes))


def test_each_worker_of_a_ready_tpu_is_a_host():
    first, second = hosts_of(node()).hosts
    assert (first.name, second.name) == ("demo-w0", "demo-w1")
    assert first.groups == (
        *("tpu", "tpu_demo", "leaders"),
        *("zone_us-central2-b", "type_v4-16", "state_READY"),
    )
    assert "leaders" not in second.groups


def test_the_variables_of_a_worker_describe_its_tpu_and_its_leader():
    _, second = hosts_of(node(schedulingConfig={"spot": True}, labels={"a": "b"})).hosts
    assert second.variables == {
        "tpu_name": "demo",
        "tpu_id": "4711",
        "tpu_zone": "us-central2-b",
        "tpu_accelerator_type": "v4-16",
        "tpu_generation": "v4",
        "tpu_topology": "",
        "tpu_state": "READY",
        "tpu_health": "",
        "tpu_spot": True,
        "tpu_worker_id": 1,
        "tpu_worker_count": 2,
        "tpu_chips": 4,
        "tpu_internal_ip": "10.0.0.3",
        "tpu_external_ip": "203.0.113.3",
        "tpu_leader_ip": "10.0.0.2",
        "tpu_device_glob": "/dev/accel*",
        "tpu_data_disks": [],
        "tpu_labels": {"a": "b"},
        "tpu_queued_resource": "",
        "tpu_multislice": "",
        "tpu_slice_id": 0,
        "tpu_slice_count": 1,
        "tpu_slice_leader_ip": "10.0.0.2",
        "ansible_host": "203.0.113.3",
        "ansible_control_path": second.variables["ansible_control_path"],
    }


def sliced(name, zone="us-central2-b", resource="big", **fields):
    resource = f"projects/p/locations/{zone}/queuedResources/{resource}"
    defaults = {"id": f"{name}{zone}", "multisliceNode": True, "queuedResource": resource}
    return node(name, zone, **(defaults | fields))


def variables(built, *names):
    return [tuple(host.variables[name] for name in names) for host in built.hosts]


def test_the_slices_of_one_queued_resource_have_common_multislice_variables():
    others = [{"ipAddress": "10.0.0.9", "accessConfig": {"externalIp": "203.0.113.9"}}]
    built = hosts_of(
        sliced("big-1", networkEndpoints=others, acceleratorType="v4-8"), sliced("big-0")
    )
    names = ("tpu_multislice", "tpu_slice_id", "tpu_slice_count", "tpu_slice_leader_ip")
    assert variables(built, "tpu_name", *names) == [
        ("big-1", "big", 1, 2, "10.0.0.2"),
        ("big-0", "big", 0, 2, "10.0.0.2"),
        ("big-0", "big", 0, 2, "10.0.0.2"),
    ]
    assert all("multislice_big" in host.groups for host in built.hosts)


def test_the_number_of_a_missing_slice_is_not_reused():
    built = hosts_of(sliced("big-2", state="PREEMPTED"), sliced("big-0", acceleratorType="v4-16"))
    assert variables(built, "tpu_slice_id", "tpu_slice_count") == [(2, 3), (0, 3), (0, 3)]


def test_slices_without_numbers_are_sorted_by_name():
    built = hosts_of(sliced("right"), sliced("left"))
    assert variables(built, "tpu_name", "tpu_slice_id")[::2] == [("right", 1), ("left", 0)]


def test_queued_resources_of_one_name_in_two_zones_are_two_multislices():
    built = hosts_of(sliced("big-0"), sliced("big-0", "us-east1-d"))
    assert variables(built, "tpu_slice_count") == [(1,)] * 4
    assert {host.groups[-1] for host in built.hosts} == {
        "multislice_big_us-central2-b",
        "multislice_big_us-east1-d",
    }


def test_tpus_created_one_by_one_are_never_a_multislice():
    resource = "projects/p/locations/us-central2-b/queuedResources/sweep-0"
    built = hosts_of(node("sweep-0", id="1", queuedResource=resource), node("sweep-1", id="2"))
    assert set(variables(built, "tpu_multislice", "tpu_slice_count")) == {("", 1)}


@pytest.mark.parametrize(
    ("state", "addresses"),
    [("CREATING", 2), ("STOPPED", 2), ("PREEMPTED", 0), ("TERMINATED", 0), ("DELETING", 0)],
)
def test_a_tpu_that_is_not_ready_is_one_host_that_no_play_addresses(state, addresses):
    (host,) = hosts_of(node(state=state)).hosts
    assert (host.name, host.groups) == ("demo", (f"state_{state}",))
    assert host.variables["tpu_internal_ips"] == ["10.0.0.2", "10.0.0.3"][:addresses]
    assert "ansible_host" not in host.variables


def test_a_ready_tpu_without_endpoints_is_not_in_the_group_tpu():
    (host,) = hosts_of(node(networkEndpoints=[])).hosts
    assert host.groups == ("state_READY",)


def test_a_tpu_without_external_addresses_is_a_single_host_with_a_warning():
    built = hosts_of(node(networkEndpoints=[{"ipAddress": "10.0.0.2"}], acceleratorType="v4-8"))
    assert [host.name for host in built.hosts] == ["demo"]
    assert "address: internal" in built.warnings[0]


def test_a_warning_names_a_tpu_with_fewer_workers_than_its_type():
    built = hosts_of(node(acceleratorType="v4-32"))
    assert "lists 2 workers, but a v4-32 has 4" in built.warnings[0]
    assert len(built.hosts) == 2


def test_ssh_looks_up_the_host_key_by_tpu_id_and_worker():
    known = [("4711-w0", ""), ("4711-w1", "")]
    first, _ = hosts_of(node(), known=known, known_hosts_file="/fleet/known_hosts").hosts
    assert first.variables["ansible_ssh_common_args"] == (
        "-o HostKeyAlias=4711-w0 -o UserKnownHostsFile=/fleet/known_hosts "
        "-o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes"
    )


def test_workers_with_the_same_address_never_share_an_ssh_connection():
    first, second = (hosts_of(node(id=tpu), address="internal").hosts[0] for tpu in ("1", "2"))
    assert first.variables["ansible_host"] == second.variables["ansible_host"] == "10.0.0.2"
    paths = [host.variables["ansible_control_path"] for host in (first, second)]
    assert paths[0] != paths[1]
    assert all(re.fullmatch(r"%\(directory\)s/[0-9a-f]{10}-%%r", path) for path in paths)


def test_workers_without_host_keys_are_named_and_refused():
    built = hosts_of(node(), known=[("4711-w0", "")], known_hosts_file="/fleet/known_hosts")
    assert built.warnings[0].startswith("worker 1 of TPU demo (us-central2-b) published no")
    assert "StrictHostKeyChecking=yes" in built.hosts[1].variables["ansible_ssh_common_args"]


def test_accept_new_accepts_missing_host_keys_with_a_warning():
    built = hosts_of(node(), known_hosts_file="/fleet/known_hosts", accept_new=True)
    assert "accept-new" in built.warnings[0]
    assert "accept-new" in built.hosts[0].variables["ansible_ssh_common_args"]


def test_hosts_of_tpus_of_one_name_in_two_zones_have_the_zone_in_their_names():
    built = hosts_of(node(id="1"), node(zone="us-east1-d", id="2", state="PREEMPTED"))
    names = [host.name for host in built.hosts]
    assert names == ["demo-us-central2-b-w0", "demo-us-central2-b-w1", "demo-us-east1-d"]


def test_tpus_of_one_name_never_share_their_group():
    built = hosts_of(node(id="1"), node(zone="us-east1-d", id="2"))
    groups = {host.groups[1] for host in built.hosts}
    assert groups == {"tpu_demo_us-central2-b", "tpu_demo_us-east1-d"}
    assert any(
        "the one in us-east1-d: -e tpu=demo_us-east1-d" in warning for warning in built.warnings
    )


def test_a_dead_tpu_named_like_a_group_gets_its_zone_in_its_host_name():
    (host,) = hosts_of(node("tpu", state="PREEMPTED")).hosts
    assert host.name == "tpu-us-central2-b"


HOSTILE = ["p;touch${IFS}x", "p$(id)", "p`id`", "-p", "p%h", "p'q", 'p"q', "p|q", "p&q", "p\\q"]


def name_in(project):
    return node()["name"].replace("local-fleet", project)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": None}, "the name of a TPU"),
        *(({"name": name_in(project)}, "the name of a TPU") for project in HOSTILE),
        ({"networkEndpoints": [{"ipAddress": "-oProxyCommand=x"}]}, "is not an IP address"),
        ({"networkEndpoints": "none"}, "networkEndpoints"),
        ({"id": "a b"}, "invalid id ('a b')"),
        ({"state": {"a": 1}}, "state"),
        ({"queuedResource": "projects/p/queuedResources/{{ x }}"}, "invalid queuedResource"),
        ({"labels": {"a": 1}}, "labels.a"),
    ],
)
def test_an_invalid_node_is_an_error_of_one_line_that_names_the_field(fields, expected):
    with pytest.raises(errors.BadAnswer, match=re.escape(expected)) as caught:
        parse_node(node() | fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("project", ["example.com:my-fleet", "123456789012"])
def test_projects_of_every_kind_are_accepted(project):
    assert parse_node(node() | {"name": name_in(project)}).project == project


SHORT = st.text(min_size=1, max_size=6)


@given(SHORT, SHORT, SHORT)
def test_every_name_is_quoted_as_one_argument_of_the_proxy_command(project, zone, host):
    tpu = replace(parse_node(node()), project=project, zone=zone)
    options = HostOptions(address="iap", known_hosts_file="/known")
    known = {f"4711-w{w}": KnownHost(f"4711-w{w}", {}, host) for w in (0, 1)}

    (worker, _) = build_hosts([tpu], options, known, slices_of([tpu])).hosts

    proxy = shlex.split(worker.variables["ansible_ssh_common_args"])[-1]
    arguments = shlex.split(proxy.removeprefix("ProxyCommand="))
    assert arguments[3] == host
    assert arguments[6:8] == [f"--project={project}", f"--zone={zone}"]


@pytest.mark.parametrize(
    ("kind", "chips", "workers"),
    [
        ("v3-32", 16, 4),
        ("v4-8", 4, 1),
        ("v5p-12288", 6144, 1536),
        ("v5litepod-8", 8, 1),
        ("v5litepod-16", 16, 4),
        ("v6e-4", 4, 1),
    ],
)
def test_a_type_has_the_chips_and_workers_that_google_documents(kind, chips, workers):
    shape = shape_of(kind)
    assert (shape.chips, shape.workers) == (chips, workers)


@pytest.mark.parametrize(
    ("config", "topology", "kind"),
    [("V4", "2x2x2", "v4-16"), ("V5LITE_POD", "4x4", "v5litepod-16"), ("V9", "2x2", "")],
)
def test_a_config_and_a_topology_determine_the_type(config, topology, kind):
    assert type_of_config(config, topology) == kind


TEXTS = st.text(max_size=8) | st.sampled_from(["10.0.0.2", "::1", "READY", "v4-16", "V4", "2x2x2"])
NAMES = st.from_regex(r"projects/[a-z0-9-]{3,9}/locations/[a-z0-9-]{3,9}/nodes/[a-z0-9-]{1,9}")
IDS = st.integers(0, 2**63 - 1).map(str)


def values_of(schema: dict, schemas: dict) -> st.SearchStrategy:
    """Generate any value that a schema of Google's API allows, and unknown members of its enums."""
    if "$ref" in schema:
        return values_of(schemas[schema["$ref"]], schemas)
    if schema["type"] == "array":
        return st.lists(values_of(schema["items"], schemas), max_size=3)
    if "additionalProperties" in schema:
        inner = values_of(schema["additionalProperties"], schemas)
        return st.dictionaries(TEXTS, inner, max_size=2)
    if schema["type"] == "object":
        fields = schema.get("properties", {}).items()
        return st.fixed_dictionaries(
            {}, optional={name: values_of(field, schemas) for name, field in fields}
        )
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | TEXTS
    if schema.get("format") == "int64":
        return IDS | TEXTS
    return {"string": TEXTS, "boolean": st.booleans(), "integer": st.integers(0, 2**31)}[
        schema["type"]
    ]


GOOGLES = document("v2")["schemas"]
SCHEMA_NODES = st.tuples(values_of(GOOGLES["Node"], GOOGLES), NAMES | TEXTS).map(
    lambda made: made[0] | {"name": made[1]}
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
DAMAGED_NODES = st.tuples(SCHEMA_NODES, st.sampled_from(sorted(node())), ANYTHING).map(
    lambda damage: node() | damage[0] | {"name": node()["name"], damage[1]: damage[2]}
)


@settings(max_examples=150)
@given(SCHEMA_NODES | DAMAGED_NODES | ANYTHING, st.sampled_from(["external", "internal", "iap"]))
def test_any_json_gives_hosts_or_an_error_of_one_line(data, address):
    try:
        built = hosts_of(data, address=address, known_hosts_file="/k")
    except errors.BadAnswer as bad:
        assert str(bad)
        assert str(bad).isprintable()
        return
    assert built.hosts
    for host in built.hosts:
        assert re.fullmatch(r"[a-z0-9-]+", host.name)
        assert host.groups
        assert ("tpu" in host.groups) == ("ansible_host" in host.variables)
        assert re.fullmatch(r"[0-9a-f.:]*", host.variables.get("ansible_host", ""))


@settings(max_examples=100)
@given(
    st.lists(SCHEMA_NODES, min_size=2, max_size=4),
    st.lists(st.sampled_from(["demo", "demo-0", "demo-1", "tpu"]), min_size=4, max_size=4),
    st.lists(st.sampled_from(["us-central2-b", "us-east1-d"]), min_size=4, max_size=4),
    st.sampled_from(["external", "internal", "iap"]),
)
def test_any_fleet_gives_hosts_of_different_names_or_an_error_of_one_line(
    drawn, names, zones, address
):
    path = "projects/local-fleet/locations/{}/nodes/{}"
    fleet = [
        fields | {"name": path.format(zone, name), "id": str(number), "state": "READY"}
        for number, (fields, name, zone) in enumerate(zip(drawn, names, zones, strict=False))
    ]
    try:
        built = hosts_of(*fleet, address=address, known_hosts_file="/k")
        check_unique_names([(host.name, host) for host in built.hosts])
    except (errors.BadAnswer, errors.NotConfigured) as error:
        assert str(error).isprintable()
        return
    assert len({host.name for host in built.hosts}) == len(built.hosts)
    assert {host.node.id for host in built.hosts} == {fields["id"] for fields in fleet}
    for host in built.hosts:
        json.dumps(host.variables)
        assert host.variables["tpu_slice_id"] < host.variables["tpu_slice_count"]
        own = {group for group in host.groups if group.startswith("tpu_")}
        assert len(own) == ("tpu" in host.groups)


@pytest.mark.parametrize("request_name", ["My_QR.1~a", "a+b", "50%"])
def test_a_queued_resource_of_another_user_may_have_any_name_that_google_accepts(request_name):
    path = f"projects/my-project/locations/us-central2-b/queuedResources/{request_name}"
    assert parse_node(node(queuedResource=path)).queued_resource == request_name
    assert parse_queued_resource({"name": path}).name == request_name
