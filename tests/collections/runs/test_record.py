"""Validation of run records: their fields and TPUs, unknown fields, and hostile values."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.node_identity import NodeIdentity
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.record import (
    DesiredState,
    InvalidRecordError,
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
