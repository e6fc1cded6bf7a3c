"""The inventory's benchmark, run on a tiny fleet."""

from bench.inventory import Bench, Fleet, compare, fails_twice
from harness.scripted_api import serving

TINY = Fleet(4, 2, ("us-central2-b", "us-east1-d"), "v4-16")


def test_the_plugin_lists_the_hosts_of_the_static_file_with_one_request_per_page(tmp_path, capsys):
    with serving(tmp_path) as api:
        bench = Bench(TINY, api, tmp_path)
        compare(bench, rounds=1)
        assert fails_twice(bench)
    assert "2 lists for 2 pages and 0 others" in capsys.readouterr().out
