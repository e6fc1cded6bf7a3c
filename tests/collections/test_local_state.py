"""The local state directory."""

from pathlib import Path

from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.local_state import local_state_dir


def test_local_state_is_beside_local_records():
    assert local_state_dir("/home/me/tpufleet/.tpufleet") == "/home/me/tpufleet/.tpufleet"


def test_with_records_in_a_bucket_it_is_in_the_home_s_cache():
    assert local_state_dir("gs://mine/fleet") == str(Path.home() / ".cache/tpufleet")


def test_a_tilde_is_expanded():
    assert local_state_dir("~/fleet") == str(Path.home() / "fleet")
