"""A launch as one object: validated when read from JSON, unchanged after a write and a read."""

import json
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.launch_spec import (
    InvalidLaunchError,
    LaunchSpec,
    fill_command,
)

from harness.valid_record import launch_spec


def test_a_launch_is_the_same_after_it_was_written_and_read():
    spec = launch_spec(attempt=3, slices=2)

    assert LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("coordinator_host", "a b"),
        ("coordinator_host", "{{ x }}"),
        ("placement", "pod-w0"),
        ("placement", [1]),
        ("slices", 0),
        ("slices", 3),
        ("rendezvous_seconds", 0),
        ("outputs", "/a/mine"),
        ("outputs", "s3://bucket/mine"),
        ("outputs", "gs://bucket/runs/other"),
        ("outputs", "gs://bucket/../mine"),
        ("outputs", "gs://bucket/{{ x }}/mine"),
        ("run", "../x"),
    ],
)
def test_an_invalid_field_is_named_in_the_error_without_its_value(field, value):
    with pytest.raises(InvalidLaunchError) as refused:
        launch_spec(**{field: value}) if field != "run" else launch_spec(value)

    assert refused.value.field == field
    assert "{{" not in str(refused.value)


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_json_that_is_not_an_object_is_not_a_launch(value):
    with pytest.raises(InvalidLaunchError, match="not a JSON object"):
        LaunchSpec.from_json(value)


def test_the_ports_depend_on_attempt_and_chip_and_the_host_may_be_ipv6():
    spec = launch_spec(attempt=3, coordinator_host="[fd00::1]")

    assert spec.coordinator == "[fd00::1]:8479"
    assert spec.rendezvous_address == ("fd00::1", 9479)
    assert replace(spec, chip=0).coordinator == "[fd00::1]:10479"


def test_a_worker_without_a_name_is_named_by_its_process_id():
    spec = launch_spec(placement=["pod-w0", "", "", "pod-w3"])

    names = [spec.worker_name(number) for number in range(5)]

    assert names == ["pod-w0", "process 1", "process 2", "pod-w3", "process 4"]


@pytest.mark.parametrize(
    "other",
    [
        {"attempt": 9},
        {"compile_cache": "/x"},
        {"outputs": "gs://other/runs/mine"},
        {"placement": ["q"]},
        {"config_name": "other.yml"},
    ],
)
def test_two_attempts_of_one_launch_have_the_same_definition(other):
    assert launch_spec(**other).definition() == launch_spec().definition()
    assert launch_spec(config="steps: 11\n").definition() != launch_spec().definition()


def test_contract_variables_replace_their_placeholders_and_other_braces_stay():
    braces = ('{"a": 1}', "{unknown}", "{RUN}", "{home}")
    argv = ("x", "--id={process_id}", "{coordinator}", "{checkpoints}", *braces)
    variables = {
        "TPUFLEET_PROCESS_ID": "1",
        "TPUFLEET_COORDINATOR": "10.0.0.2:8479",
        "TPUFLEET_CHECKPOINTS": "/a b; rm -rf /",
        "TPUFLEET_RUN": "mine",
        "HOME": "/home/me",
    }

    filled = fill_command(argv, variables)

    assert filled == ["x", "--id=1", "10.0.0.2:8479", "/a b; rm -rf /", *braces]
