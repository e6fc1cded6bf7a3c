"""Validation of run records: fields, limits of their values, history, and hostile values."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run_state import RunState
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.causes import Cause, CauseCode
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.event_kind import EventKind
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import (
    DesiredState,
    InvalidRecordError,
    RunRecord,
    parse_record,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore
from hypothesis import given
from hypothesis import strategies as st

from harness.valid_record import record_fields

RUN = "shakespeare"
VALID = record_fields(
    RUN,
    attempt=3,
    generation=7,
    wanted_seconds=1.5,
    wanted_since=1e9,
    history=[{"time": 1e9, "kind": "launched", "release": "a"}],
    watch={"state": "training", "crashes": 1, "since": 1e9},
)
TEMPLATE = "{{ lookup('ansible.builtin.pipe', 'touch /tmp/owned') }}"


def test_a_valid_record_is_parsed_completely_and_reads_back_equal() -> None:
    record = parse_record(RUN, VALID)

    assert record.wanted is DesiredState.RUNNING
    assert record.launch.nodes == (NodeIdentity("pod", "us-east1-d", "4711"),)
    assert record.fields() == {**VALID, "fence": 0}
    assert parse_record(RUN, json.loads(json.dumps(record.fields()))) == record


@pytest.mark.parametrize("text", [TEMPLATE, "../../etc", "a b=c", "-e", "x\ny", "@file"])
@pytest.mark.parametrize(
    "field",
    ["run", "wanted", "release", "requirements", "jax_requirements", "config_name", "tpu"],
)
def test_an_invalid_name_is_refused(field: str, text: str) -> None:
    with pytest.raises(InvalidRecordError, match=field):
        parse_record(RUN, {**VALID, field: text})


@pytest.mark.parametrize(
    "node",
    [
        "pod",
        {"name": "pod", "zone": "us-east1-d"},
        {"name": TEMPLATE, "zone": "us-east1-d", "id": "1"},
        {"name": "pod", "zone": TEMPLATE, "id": "1"},
        {"name": "pod", "zone": "us-east1-d", "id": TEMPLATE},
        {"name": "pod", "zone": "us-east1-d", "id": 1},
    ],
)
def test_a_node_without_an_identity_is_refused(node: object) -> None:
    with pytest.raises(InvalidRecordError, match="nodes"):
        parse_record(RUN, {**VALID, "nodes": [node]})


@pytest.mark.parametrize("field", ["wanted", "release", "requirements", "command", "tpu"])
def test_a_record_without_a_field_that_a_launch_needs_is_refused(field: str) -> None:
    with pytest.raises(InvalidRecordError, match=field):
        parse_record(RUN, {name: value for name, value in VALID.items() if name != field})


def test_unknown_fields_are_dropped() -> None:
    record = parse_record(RUN, {**VALID, "ansible_connection": "local", TEMPLATE: 1})

    assert record == parse_record(RUN, VALID)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from(sorted(VALID)), value=JSON_VALUES)
def test_any_value_in_any_field_reads_back_or_is_refused(field: str, value: Any) -> None:
    try:
        record = parse_record(RUN, {**VALID, field: value})
    except InvalidRecordError as error:
        assert "\n" not in str(error)
        return

    assert parse_record(RUN, record.fields()) == record


@given(value=JSON_VALUES)
def test_json_that_is_not_a_record_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRecordError):
        parse_record(RUN, value)


def stored(folder: Path, **documents: str) -> RunStore:
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    for name, text in documents.items():
        (folder / "runs" / f"{name}.json").write_text(text, encoding="utf-8")
    return RunStore.of(str(folder))


@pytest.mark.parametrize(
    "text", ["[]", "null", "1", '"x"', "{", "[" * 100_000, '{"run": "other"}', "\x00"]
)
def test_an_invalid_document_does_not_hide_other_records(tmp_path: Path, text: str) -> None:
    valid = json.dumps(VALID)
    store = stored(tmp_path, bad=text, **{RUN: valid, "-e x": valid})

    records = store.read_all()

    assert list(records.usable) == [RUN]
    assert sorted(record.name for record in records.unusable) == ["-e x", "bad"]


def read(**fields: Any) -> RunRecord:
    return parse_record("mine", record_fields(**fields))


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("attempt", 0, 1 << 31),
        ("generation", 0, 1 << 53),
        ("fence", 0, 1 << 53),
        ("workers", 1, 1 << 16),
        ("chip", -1, 1 << 10),
        ("wanted_seconds", 0.0, 1e12),
        ("wanted_since", 0.0, 1e12),
        ("wanted_until", 0.0, 1e12),
        ("phase_since", 0.0, 1e12),
    ],
)
def test_a_number_in_a_record_is_accepted_only_within_its_limits(
    field: str, least: float, most: float
) -> None:
    assert [read(**{field: value}).fields()[field] for value in (least, most)] == [least, most]
    for value in (least - 1, most + 1):
        with pytest.raises(InvalidRecordError, match=field):
            read(**{field: value})


@pytest.mark.parametrize(
    ("field", "longest"),
    [
        ("command", ["a" * (1 << 16)]),
        ("command", ["a"] * 1000),
        ("config", "a" * (1 << 20)),
        ("env", {"A": "a" * (1 << 16)}),
        ("nodes", [{"name": "pod", "zone": "us-east1-d", "id": "1"}] * 1024),
    ],
)
def test_a_text_or_list_in_a_record_is_accepted_up_to_its_maximum_length(
    field: str, longest: Any
) -> None:
    longer = longest + longest[:1] if isinstance(longest, str | list) else {"A": "a" * 65537}
    if field == "command" and len(longest) == 1:
        longer = ["a" * 65537]

    assert read(**{field: longest}).fields()[field] == longest
    with pytest.raises(InvalidRecordError, match=field):
        read(**{field: longer})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config", "steps: 1\0"),
        ("config", "\x1b[2J"),
        ("env", {"A": "\0"}),
        ("command", ["python", 1]),
        ("command", [["python"]]),
        ("nodes", {"name": "pod"}),
        ("nodes", []),
        ("history", [{"time": 1}]),
        ("history", [{"time": "now", "kind": "launched"}]),
        ("history", [[1, "launched"]]),
        ("history", [{"time": 1, "kind": "setup_started", "created": -1}]),
        ("history", [{"time": 1, "kind": "setup_started", "created": "now"}]),
        ("phase", 5),
        ("spent", ["boot"]),
        *(("spent", {"boot": value}) for value in (-1, "5", True, float("nan"), 1e13)),
        ("watch", {"since": 1e20}),
        ("watch", {"since": -1e20}),
        ("watch", {"since": float("nan")}),
        ("watch", []),
        ("attempt", 1.5),
        ("attempt", True),
        ("generation", "7"),
        ("wanted_since", float("nan")),
        ("wanted_since", True),
        ("volatile_checkpoints", "yes"),
        ("command", []),
        ("command", "python -m train"),
        ("command", ["a\0b"]),
        ("env", {"A B": "c"}),
        ("env", {"A": 1}),
        ("config", 5),
        ("history", [1]),
    ],
)
def test_a_record_with_a_value_of_a_wrong_type_or_out_of_range_is_refused(
    field: str, value: Any
) -> None:
    with pytest.raises(InvalidRecordError, match=f"run 'mine': invalid record: ({field}|time) "):
        read(**{field: value})


def test_phases_that_only_a_newer_version_knows_are_dropped() -> None:
    record = read(phase="new", spent={"boot": 5, "new": 7})

    assert record.phase is None
    assert record.spent == {"boot": 5.0}


def test_a_minimal_record_gets_defaults() -> None:
    needed = (
        *("run", "wanted", "release", "requirements", "command", "checkpoints", "tpu"),
        "nodes",
    )
    fields = record_fields(attempt=0)

    record = parse_record("mine", {name: fields[name] for name in needed})

    assert record.fields() == {name: fields[name] for name in needed} | {
        "attempt": 0,
        "generation": 0,
        "fence": 0,
        "history": [],
        "watch": {},
        "wanted_seconds": 0.0,
        "workers": 1,
        "chip": -1,
        "config": None,
        "config_name": "config.yml",
        "env": {},
        "jax_requirements": "",
        "compile_cache": "",
        "outputs": "",
        "volatile_checkpoints": False,
        "image": "",
        "starts_in_image": False,
        "slices": 1,
        "coordinator_host": "",
        "placement": [],
        "rendezvous_seconds": 120,
    }


@pytest.mark.parametrize("location", ["/a", "gs://bucket", "gs://bucket/with.dots-and_more/a b"])
def test_checkpoints_are_in_a_directory_or_url_that_ends_with_the_name_of_the_run(
    location: str,
) -> None:
    assert read(checkpoints=f"{location}/mine").launch.checkpoints == f"{location}/mine"


@pytest.mark.parametrize(
    "location", ["/mine", "mine", "/a/yours", "/a/mine/", "gs://bucket-of-ours/not-mine"]
)
def test_checkpoints_that_are_not_the_runs_own_directory_are_refused(location: str) -> None:
    with pytest.raises(InvalidRecordError, match="checkpoints"):
        read(checkpoints=location)


@pytest.mark.parametrize("field", ["checkpoints", "compile_cache"])
@pytest.mark.parametrize(
    "path",
    [
        *("/mnt/../etc/mine", "gs://bucket-of-ours/../other/mine", "relative/mine"),
        *("https://h/mine", "/a;b/mine", "/{{ x }}/mine"),
    ],
)
def test_a_record_with_an_invalid_path_is_refused(field: str, path: str) -> None:
    with pytest.raises(InvalidRecordError, match=field):
        read(**{field: path})


def test_the_last_50_events_of_the_history_are_kept() -> None:
    events = [{"time": float(number), "kind": "done"} for number in range(60)]

    assert read(history=events).history == tuple(
        Event(EventKind.DONE, float(number)) for number in range(10, 60)
    )


def test_an_event_of_the_watch_reads_back_equal() -> None:
    cause = {"code": "workers_unreachable_for", "hosts": "w0, w1", "seconds": 601.5}
    event = {"time": 7.0, "kind": "watch", "state": "unreachable", "action": "replace"}

    record = read(history=[event | {"causes": [cause]}])

    hosts = Cause(CauseCode.WORKERS_UNREACHABLE_FOR, {"hosts": "w0, w1", "seconds": 601.5})
    assert record.history == (
        Event(EventKind.WATCH, 7.0, state=RunState.UNREACHABLE, action="replace", causes=(hosts,)),
    )
    assert record.fields()["history"] == [event | {"causes": [cause]}]


def test_each_text_of_an_event_is_read_as_one_printable_line() -> None:
    cause = {"code": "confirming", "a": "\x1b[2J"}
    event = {"kind": "launch_failed", "text": " a\n\x1b[31mb ", "causes": [cause]}

    assert read(history=[event]).history == (
        Event(
            EventKind.LAUNCH_FAILED,
            text="a [31mb",
            causes=(Cause(CauseCode.CONFIRMING, {"a": "[2J"}),),
        ),
    )
    (long,) = read(history=[{"kind": "launch_failed", "text": "a" * 3000}]).history
    assert long.text == "a" * 2000


@pytest.mark.parametrize(
    "event",
    [
        *({}, {"kind": 7}, {"kind": "eclipse"}, {"kind": "done", "text": []}),
        *({"kind": "watch", "state": "odd"}, {"kind": "watch", "state": 7}),
        *({"kind": "watch", "causes": causes} for causes in ("x", [{"code": "confirming"}] * 11)),
        *({"kind": "watch", "causes": [cause]} for cause in (7, {}, {"code": "odd"})),
        {"kind": "watch", "causes": [{"code": "confirming", "a": [1]}]},
    ],
)
def test_an_invalid_event_makes_a_record_invalid(event: dict) -> None:
    with pytest.raises(InvalidRecordError, match="history"):
        read(history=[event])


def test_the_memory_of_the_watch_keeps_numbers_and_texts_with_valid_names() -> None:
    valid = {"state": "a b", "since": 1e12, "crashes": 1 - (1 << 63), "best_step": (1 << 63) - 1}
    invalid = {"a b": 1, "{{ x }}": "text", "flag": True, "list": [1], "none": None, "a-b": "text"}

    assert read(watch=invalid | valid | {"state": "a\nb"}).watch == valid
