"""Records of runs are checked before anything uses them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.history import Event, EventKind
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import (
    DesiredState,
    InvalidRecordError,
    parse_record,
)
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.run_record import RecordFolder
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.store import RunStore
from hypothesis import given
from hypothesis import strategies as st

from tests.collections.runs.valid_record import record_fields

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


def test_a_valid_record_is_read_whole() -> None:
    record = parse_record(RUN, VALID)

    assert record.wanted is DesiredState.RUNNING
    assert record.launch.nodes == (NodeIdentity("pod", "us-east1-d", "4711"),)
    assert record.fields() == {**VALID, "fence": 0}


def test_what_was_stored_is_read_back_the_same() -> None:
    record = parse_record(RUN, VALID)

    assert parse_record(RUN, json.loads(json.dumps(record.fields()))) == record


@pytest.mark.parametrize("text", [TEMPLATE, "../../etc", "a b=c", "-e", "x\ny", "@file"])
@pytest.mark.parametrize(
    "field",
    ["run", "wanted", "release", "requirements", "jax_requirements", "config_name", "tpu"],
)
def test_a_name_of_another_form_is_refused(field: str, text: str) -> None:
    with pytest.raises(InvalidRecordError, match=field):
        parse_record(RUN, {**VALID, field: text})


@pytest.mark.parametrize("field", ["checkpoints", "compile_cache"])
@pytest.mark.parametrize(
    "text", [TEMPLATE, f"gs://b/../{RUN}", f"relative/{RUN}", f"https://h/{RUN}", f"/a;b/{RUN}"]
)
def test_a_path_of_another_form_is_refused(field: str, text: str) -> None:
    with pytest.raises(InvalidRecordError, match=field):
        parse_record(RUN, {**VALID, field: text})


def test_checkpoints_of_another_run_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="checkpoints"):
        parse_record(RUN, {**VALID, "checkpoints": "gs://bucket-of-ours/checkpoints/other"})


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", -1),
        ("attempt", 1.5),
        ("attempt", True),
        ("generation", "7"),
        ("workers", 0),
        ("chip", 5000),
        ("volatile_checkpoints", "yes"),
        ("command", []),
        ("command", "python -m train"),
        ("command", ["a\0b"]),
        ("env", {"A B": "c"}),
        ("env", {"A": 1}),
        ("config", 5),
        ("history", [1]),
        ("wanted_since", float("nan")),
        ("wanted_since", True),
        ("watch", []),
    ],
)
def test_a_value_of_another_type_or_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRecordError, match=field):
        parse_record(RUN, {**VALID, field: value})


@pytest.mark.parametrize("field", ["wanted", "release", "requirements", "command", "tpu"])
def test_a_record_without_what_a_launch_needs_is_refused(field: str) -> None:
    with pytest.raises(InvalidRecordError, match=field):
        parse_record(RUN, {name: value for name, value in VALID.items() if name != field})


def test_fields_that_nobody_knows_are_left_out() -> None:
    record = parse_record(RUN, {**VALID, "ansible_connection": "local", TEMPLATE: 1})

    assert record == parse_record(RUN, VALID)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from(sorted(VALID)), value=JSON_VALUES)
def test_any_value_in_any_field_is_accepted_in_form_or_refused(field: str, value: Any) -> None:
    try:
        record = parse_record(RUN, {**VALID, field: value})
    except InvalidRecordError as error:
        assert "\n" not in str(error)
        return

    assert parse_record(RUN, record.fields()) == record


@given(value=JSON_VALUES)
def test_any_json_is_a_record_or_refused(value: Any) -> None:
    with pytest.raises(InvalidRecordError):
        parse_record(RUN, value)


def stored(folder: Path, **documents: str) -> RunStore:
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    for name, text in documents.items():
        (folder / "runs" / f"{name}.json").write_text(text, encoding="utf-8")
    return RunStore(RecordFolder(str(folder)))


@pytest.mark.parametrize(
    "text", ["[]", "null", "1", '"x"', "{", "[" * 100_000, '{"run": "other"}', "\x00"]
)
def test_a_record_that_is_none_hides_no_other(tmp_path: Path, text: str) -> None:
    store = stored(tmp_path, bad=text, **{RUN: json.dumps(VALID)})

    records = store.read_all()

    assert list(records.usable) == [RUN]
    assert [each.name for each in records.unusable] == ["bad"]


def test_a_document_whose_name_can_be_no_run_is_named_and_not_opened(tmp_path: Path) -> None:
    store = stored(tmp_path, **{RUN: json.dumps(VALID), "-e x": json.dumps(VALID)})

    records = store.read_all()

    assert list(records.usable) == [RUN]
    assert [each.name for each in records.unusable] == ["-e x"]


def change_to(store: RunStore) -> Callable[[dict[str, Any]], object]:
    return lambda fields: store.change(RUN, 7, fields, Event(EventKind.NOTE, text="changed"))


def test_a_change_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    store = stored(tmp_path, **{RUN: json.dumps(VALID)})

    with pytest.raises(InvalidRecordError, match="release"):
        change_to(store)({"release": "../../etc"})

    assert store.read(RUN) == parse_record(RUN, VALID)


def test_a_change_counts_the_generation_and_tells_the_history(tmp_path: Path) -> None:
    store = stored(tmp_path, **{RUN: json.dumps(VALID)})

    after = change_to(store)({"wanted": "stopped"})

    assert (after.generation, after.wanted) == (8, DesiredState.STOPPED)
    assert (after.history[-1].kind, after.history[-1].text) == (EventKind.NOTE, "changed")
