"""A worker's report about a process is validated: values of a wrong type become unknown."""

from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observation import (
    ProcessStatus,
    parse_process,
)
from hypothesis import given
from hypothesis import strategies as st

NAMES = (
    *("state", "reason_code", "run", "attempt", "exit_code", "signal", "ended_at", "peer"),
    *("peer_exit_code", "waiting_for", "error", "heartbeat", "heartbeat_age", "output_age"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_json_is_read_as_a_process(answer):
    assert isinstance(parse_process("pod-w0", answer), ProcessStatus)
