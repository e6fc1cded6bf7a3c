"""The heartbeat of the watch: written at the end of a pass, checked when it is read."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import Bucket
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.status import age_text
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.watch_heartbeat import (
    Heartbeat,
    HeartbeatError,
    PassOutcome,
    controller_name,
    heartbeat_line,
    parse_heartbeat,
    read_heartbeats,
    write_heartbeat,
)
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_800_000_000.0
LAPTOP = Heartbeat("laptop", NOW - 7200, 3.0, PassOutcome.FAILED, "fleet_state cannot be read")
SERVER = Heartbeat("server.example", NOW - 40, 12.5, PassOutcome.OK)


def test_the_newest_pass_of_all_controllers_comes_first(tmp_path):
    for heartbeat in (LAPTOP, SERVER):
        write_heartbeat(str(tmp_path), heartbeat, {})

    assert read_heartbeats(str(tmp_path), {}) == (SERVER, LAPTOP)


def test_controllers_that_share_a_bucket_see_each_other(bucket_api):
    for heartbeat in (LAPTOP, SERVER, LAPTOP):
        write_heartbeat("gs://fleet/state/", heartbeat, bucket_api)

    Bucket.of("gs://fleet/state/watch/passes/runs", bucket_api).write("other.json", {"x": 1}, 0)
    assert read_heartbeats("gs://fleet/state", bucket_api) == (SERVER, LAPTOP)


def test_it_is_an_error_if_no_heartbeat_can_be_read(tmp_path, bucket_api):
    assert read_heartbeats(str(tmp_path), {}) == ()
    write_heartbeat(str(tmp_path), SERVER, {})
    (tmp_path / "watch/passes/runs/server.example.json").write_text("{")
    with pytest.raises(HeartbeatError, match="can't read"):
        read_heartbeats(str(tmp_path), {})
    with pytest.raises(HeartbeatError, match="nowhere"):
        read_heartbeats("gs://nowhere/state", bucket_api)


def test_invalid_heartbeats_and_other_files_are_skipped(tmp_path):
    write_heartbeat(str(tmp_path), SERVER, {})
    folder = tmp_path / "watch/passes/runs"
    text = (folder / "server.example.json").read_text()
    for name in (".server.example.json", "server.example.json.bak"):
        (folder / name).write_text(text)
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
        {"controller": "a" * 101},
        {"ended_at": "now"},
        {"ended_at": True},
        {"ended_at": -1},
        {"ended_at": float("nan")},
        {"ended_at": 1e12 + 1},
        {"duration_s": 1e300},
        {"duration_s": -1},
        {"outcome": "{{ x }}"},
        {"error": ["x"]},
    ],
)
def test_an_invalid_field_of_a_heartbeat_is_refused(changed):
    valid = {"controller": "a" * 100, "ended_at": 1e12, "duration_s": 0, "outcome": "ok"}
    assert parse_heartbeat(valid) == Heartbeat("a" * 100, 1e12, 0.0, PassOutcome.OK, "")
    with pytest.raises(HeartbeatError, match=next(iter(changed))):
        parse_heartbeat(valid | changed)


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
def test_any_document_is_a_heartbeat_or_an_error(value):
    with pytest.raises(HeartbeatError, match="not a JSON object"):
        parse_heartbeat([value])
    try:
        heartbeat = parse_heartbeat(value)
    except HeartbeatError:
        return
    assert heartbeat_line([heartbeat], NOW).isprintable()


@given(st.text())
def test_every_host_name_gives_a_valid_controller_name(hostname):
    name = controller_name(hostname)

    assert parse_heartbeat({"controller": name, "ended_at": 1, "duration_s": 0, "outcome": "ok"})


def test_the_line_shows_age_and_error_of_the_last_pass():
    assert heartbeat_line((), NOW) == ""
    assert heartbeat_line([SERVER, LAPTOP], NOW) == "watch: last pass 40 s ago on server.example"
    assert heartbeat_line([LAPTOP], NOW) == (
        "watch: last pass 2 h ago on laptop, failed: fleet_state cannot be read"
    )
    without_reason = replace(LAPTOP, error="")
    assert heartbeat_line([without_reason], NOW) == "watch: last pass 2 h ago on laptop, failed"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (40, "40 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172799, "48 h"),
        (172800, "2 days"),
        (864000, "10 days"),
    ],
)
def test_an_age_is_shown_in_its_largest_unit(seconds, text):
    assert age_text(seconds) == text


def test_the_error_of_a_pass_is_one_line_of_at_most_500_characters():
    valid = {"controller": "a", "ended_at": 1, "duration_s": 1, "outcome": "failed"}

    assert parse_heartbeat(valid | {"error": " a\n\x1b[31mb\u202e  c "}).error == "a [31mb c"
    assert parse_heartbeat(valid | {"error": "a" * 600}).error == "a" * 500


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("tpu-host_1.example", "tpu-host_1.example"),
        ("LAPTOP.Example", "LAPTOP.Example"),
        ("-X-", "X-"),
        ("my host{{ x }}", "my-host---x---"),
        ("_.-host_.-", "host_.-"),
        ("ä", "controller"),
        ("", "controller"),
        ("a" * 200, "a" * 100),
    ],
)
def test_invalid_characters_of_a_host_name_are_replaced_or_removed(hostname, name):
    assert controller_name(hostname) == name


def test_only_the_owner_can_read_heartbeats(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for _ in range(2):
        write_heartbeat("~/new/state", SERVER, {})

    (file,) = (tmp_path / "new/state/watch/passes/runs").glob("[!.]*")
    modes = file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777
    assert (file.name, modes) == ("server.example.json", (0o700, 0o600))
    assert read_heartbeats("~/new/state", {}) == (SERVER,)


def test_a_directory_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    (tmp_path / "watch").write_text("a file")
    with pytest.raises(HeartbeatError, match=f"{tmp_path}: can't write"):
        write_heartbeat(str(tmp_path), SERVER, {})

    other = tmp_path / "other"
    (other / "watch/passes/runs/server.example.json").mkdir(parents=True)
    with pytest.raises(HeartbeatError, match="can't write"):
        write_heartbeat(str(other), SERVER, {})
    names = [path.name for path in (other / "watch/passes/runs").glob("[!.]*")]
    assert names == ["server.example.json"]


def test_a_heartbeat_that_could_not_be_read_back_is_not_written(tmp_path):
    with pytest.raises(HeartbeatError, match="invalid controller"):
        write_heartbeat(str(tmp_path), replace(SERVER, controller="../server"), {})

    assert list(tmp_path.iterdir()) == []
