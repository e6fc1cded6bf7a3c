"""Where this computer keeps releases, logs and reports."""

from pathlib import Path

from ansible_collections.tpufleet.core.plugins.filter.kept_here import kept_here


def test_it_is_beside_records_that_are_here():
    assert kept_here("/home/me/tpufleet/.tpufleet") == "/home/me/tpufleet/.tpufleet"


def test_with_records_in_a_bucket_it_is_the_cache_of_the_home():
    assert kept_here("gs://mine/fleet") == str(Path.home() / ".cache/tpufleet")


def test_a_home_is_found_as_a_shell_would():
    assert kept_here("~/fleet") == str(Path.home() / "fleet")
