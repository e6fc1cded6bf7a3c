"""The fleet file: what may be written there, and what comes of it."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_api import ApiSettings, TpuApi
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_errors import NotConfigured
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.tpu_nodes import Disk, parse_node
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.fleet import (
    choose,
    expand,
    name_and_zone,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.tpu_fleet import (
    Options,
    create,
    delete,
    find,
    sort_nodes,
    survey,
)

from harness.scripted_api import Say, error, node
from tests.localcloud.api.local_api import LocalApi

DEMO = {
    "name": "demo",
    "zone": "us-central2-b",
    "accelerator_type": "v4-16",
    "runtime_version": "tpu-ubuntu2204-base",
}


def quiet(_name: str, _state: str) -> None:
    pass


def test_count_makes_that_many_of_one_kind():
    assert [tpu.name for tpu in expand([DEMO | {"name": "sweep", "count": 3}])] == [
        "sweep-0",
        "sweep-1",
        "sweep-2",
    ]


def test_zones_are_tried_in_the_order_they_are_written():
    entry = {key: value for key, value in DEMO.items() if key != "zone"}
    (tpu,) = expand([entry | {"zones": ["us-east1-d", "us-central2-b"]}])
    assert tpu.zones == ("us-east1-d", "us-central2-b")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"acelerator_type": "v4-8"}, "unknown key 'acelerator_type', is it accelerator_type?"),
        ({"name": None}, "entry 1: it has no name"),
        ({"name": "Demo"}, "'Demo' is no name for a TPU"),
        ({"zone": "us-central2"}, "'us-central2' is no zone"),
        ({"zone": "-"}, "needs a zone of its own"),
        ({"zones": ["us-east1-d"]}, "say either zone or zones"),
        ({"count": 0}, "count is 0"),
        ({"count": True}, "count is True"),
        ({"spot": "yes"}, "spot is 'yes', wanted is true or false"),
        ({"spot": True, "preemptible": True}, "choose one"),
        ({"labels": {"n": 1}}, "put numbers, true and false in quotes"),
        ({"tags": "ssh"}, "tags is 'ssh'"),
        ({"data_disks": [{"name": "d", "mode": "rw"}]}, "data_disks has {'name': 'd'"),
        ({"data_disks": [1]}, "data_disks has 1"),
        ({"runtime_version": None}, "needs runtime_version"),
    ],
)
def test_a_mistake_in_the_fleet_file_is_named(change, what):
    with pytest.raises(NotConfigured) as caught:
        expand([DEMO | change])
    assert what in str(caught.value)


@pytest.mark.parametrize("fleet", [None, "demo", {"demo": {}}, ["demo"], [None]])
def test_a_fleet_of_another_shape_is_refused(fleet):
    with pytest.raises(NotConfigured, match="tpu_fleet"):
        expand(fleet)


def test_data_disks_are_names_to_read_only_unless_said_otherwise():
    disks = ["corpus", {"name": "scratch", "mode": "read-write"}]
    (tpu,) = expand([DEMO | {"accelerator_type": "v4-8", "data_disks": disks}])
    assert tpu.choices[0].data_disks == (Disk("corpus"), Disk("scratch", writable=True))


def test_a_tpu_remade_after_the_question_stays_and_is_named(client, scripted):
    scripted.answerer = lambda _: Say(node(id="4712"))
    options = Options(agreed=frozenset({"4711"}))
    (done,) = delete(client, [parse_node(node(id="4712"))], options, quiet)
    assert (done.reason, set(scripted.methods())) == ("different", {"GET"})


def test_two_tpus_of_one_name_are_refused():
    with pytest.raises(NotConfigured, match="two TPUs called demo"):
        expand([DEMO, DEMO])


def test_a_name_that_the_fleet_lacks_is_answered_with_those_it_has():
    with pytest.raises(NotConfigured, match=r"no TPU called 'dmeo'; it has demo"):
        choose(expand([DEMO]), "dmeo")


def test_what_exists_and_is_not_in_the_fleet_is_unwanted():
    seen = sort_nodes(expand([DEMO]), [parse_node(node()), parse_node(node("old"))], ["-"])
    assert (list(seen.present), [each.name for each in seen.unwanted]) == (["demo"], ["old"])


def test_a_living_tpu_in_a_later_zone_comes_before_a_dead_one():
    entry = {key: value for key, value in DEMO.items() if key != "zone"}
    fleet = expand([entry | {"zones": ["us-east1-d", "us-central2-b"]}])
    nodes = [parse_node(node(zone="us-east1-d", state="PREEMPTED")), parse_node(node(id="2"))]
    assert sort_nodes(fleet, nodes, ["-"]).present["demo"].zone == "us-central2-b"


def test_a_zone_that_the_inventory_does_not_list_is_an_error():
    with pytest.raises(NotConfigured, match=r"us-central2-b is not listed.*tpu\.yml"):
        sort_nodes(expand([DEMO]), [], ["us-east1-d"])


def test_a_name_in_two_zones_is_never_deleted_on_a_guess():
    nodes = [parse_node(node()), parse_node(node(zone="us-east1-d", id="2"))]
    with pytest.raises(NotConfigured, match="say -e zone="):
        find(nodes, "demo")
    assert [node.id for node in find(nodes, "demo", "us-east1-d")] == ["2"]


def test_a_name_that_no_tpu_has_is_answered_with_those_that_are_there():
    nodes = [parse_node(node()), parse_node(node("pod"))]
    with pytest.raises(NotConfigured, match=r"there are demo \(.*\), pod \("):
        find(nodes, "dmeo")
    with pytest.raises(NotConfigured, match="there is none at all"):
        find([], "demo")
    assert find(nodes, "gone", known=True) == []


def test_no_capacity_in_one_zone_goes_on_to_the_next(client, scripted):
    full = {"done": True, "error": {"code": 8, "message": "There is no more capacity"}}
    made: list[str] = []

    def answer(asked):
        zone = asked.path.split("/")[5]
        if asked.method == "POST":
            made.append(zone)
            return Say(full if zone == "us-east1-d" else {"done": True})
        there = zone == "us-central2-b" and zone in made
        return Say(node()) if there else error(404, "not found")

    scripted.answerer = answer
    entry = {key: value for key, value in DEMO.items() if key != "zone"}
    fleet = expand([entry | {"zones": ["us-east1-d", "us-central2-b"]}])
    (done,) = create(client, fleet, {}, Options(), quiet)
    assert (done.zone, made) == ("us-central2-b", ["us-east1-d", "us-central2-b"])


def test_no_capacity_anywhere_is_waited_for_as_long_as_was_said(client, scripted, clock):
    full = {"done": True, "error": {"code": 8, "message": "There is no more capacity"}}
    scripted.answerer = lambda asked: (
        Say(full) if asked.method == "POST" else error(404, "not found")
    )
    (done,) = create(client, expand([DEMO]), {}, Options(wait_for_capacity=60), quiet)
    assert (done.reason, clock.now) == ("capacity", 60)


def test_a_fleet_is_made_once_and_removed_whole(local_api: LocalApi):
    settings = ApiSettings("local-fleet", local_api.endpoint, str(local_api.credentials_file))
    api = TpuApi(settings)
    fleet = expand([DEMO | {"name": "sweep", "accelerator_type": "v4-8", "count": 3}])
    made = create(api, fleet, survey(api, fleet, ["-"]).present, Options(timeout=20), quiet)
    again = create(api, fleet, survey(api, fleet, ["-"]).present, Options(timeout=20), quiet)
    assert [done.changed for done in made + again] == [True] * 3 + [False] * 3
    seen = survey(api, fleet, ["-"]).present
    gone = delete(api, list(seen.values()), Options(timeout=20), quiet)
    assert [done.failed for done in gone] == [False] * 3
    assert api.list_nodes().nodes == []


def test_one_tpu_that_fails_leaves_the_others_alone(local_api: LocalApi):
    settings = ApiSettings("local-fleet", local_api.endpoint, str(local_api.credentials_file))
    fleet = expand([DEMO, DEMO | {"name": "odd", "accelerator_type": "v4-17"}])
    good, bad = create(TpuApi(settings), fleet, {}, Options(timeout=20), quiet)
    assert (good.failed, bad.failed) == (False, True)
    assert "v4-17" in bad.msg


SPOT = DEMO | {"accelerator_type": "v4-8", "spot": True, "queued": {"valid_for": "6h"}}


def cloud_of(local_api: LocalApi) -> TpuApi:
    return TpuApi(ApiSettings("local-fleet", local_api.endpoint, str(local_api.credentials_file)))


def made(api: TpuApi, **options):
    fleet = expand([SPOT])
    options = Options(timeout=20, replace_dead=True, **options)
    (done,) = create(api, fleet, survey(api, fleet, ["-"]).present, options, quiet)
    assert not done.failed, done.msg
    return done


def test_a_queued_tpu_comes_through_the_queue_once_and_goes_with_its_request(local_api: LocalApi):
    api = cloud_of(local_api)
    assert made(api, check=True).changed
    assert api.list_requests() == []
    assert [made(api).changed, made(api).changed] == [True, False]
    (request,) = api.list_requests()
    assert request["queueingPolicy"] == {"validUntilDuration": "21600s"}
    seen = survey(api, expand([SPOT]), ["-"]).present
    (gone,) = delete(api, list(seen.values()), Options(timeout=20), quiet)
    assert (gone.failed, api.list_nodes().nodes, api.list_requests()) == (False, [], [])


def test_a_queued_tpu_that_was_preempted_is_asked_for_anew(local_api: LocalApi):
    api = cloud_of(local_api)
    first = made(api)
    assert local_api.call("POST", "/_localcloud/nodes/demo:preempt").status_code == 200
    local_api.state_is("demo", "PREEMPTED")
    second = made(api)
    assert second.node["state"] == "READY"
    assert second.node["id"] != first.node["id"]


def test_a_queued_tpu_that_was_deleted_by_itself_is_asked_for_anew(local_api: LocalApi):
    api = cloud_of(local_api)
    made(api)
    local_api.ended(local_api.delete("demo"))
    assert made(api).node["state"] == "READY"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"queued": True}, "queued is True, wanted is such as {valid_for: 6h}"),
        ({"queued": {"valid_for": "long"}}, "queued: valid_for is 'long'"),
        ({"queued": {"until": "6h"}}, "queued is {'until': '6h'}"),
        ({"queued": {}, "spot": False, "reserved": True}, "queued doesn't go with reserved"),
    ],
)
def test_a_mistake_in_queued_is_named(change, what):
    with pytest.raises(NotConfigured) as caught:
        expand([SPOT | change])
    assert what in str(caught.value)


def test_queued_is_for_one_zone():
    entry = {key: value for key, value in SPOT.items() if key != "zone"}
    with pytest.raises(NotConfigured, match="queued is for one zone"):
        expand([entry | {"zones": ["us-central2-b", "us-east1-d"]}])


def test_idle_delete_after_is_a_time_for_watch_to_act_on():
    (tpu,) = expand([DEMO | {"idle_delete_after": "2h"}])
    assert tpu.idle_delete_after == 7200
    with pytest.raises(NotConfigured, match="demo: idle_delete_after is 'soon'"):
        expand([DEMO | {"idle_delete_after": "soon"}])


def test_one_of_two_tpus_of_a_name_is_meant_by_its_name_and_zone():
    assert name_and_zone("demo_us-central2-b") == ("demo", "us-central2-b")
    assert name_and_zone("demo") == ("demo", "")
