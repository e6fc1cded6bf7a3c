"""What a worker is told of itself: its time zone, and where its own name leads."""

from ansible_collections.tpufleet.core.plugins.modules.host_settings import current_zone

from tests.collections.running_modules import run_module


def settings(hosts, **words):
    """Run the module on a hosts file, in the zone that this system has already."""
    given = {"timezone": current_zone(), "sync": False, "address": "10.0.0.2", "name": "w0"}
    return run_module("host_settings", hosts=str(hosts), **{**given, **words})


def test_the_own_name_is_led_to_the_address_once(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 w0\n")

    assert settings(hosts)["changed"]
    assert hosts.read_text() == "127.0.0.1 localhost\n10.0.0.2 w0\n"
    assert not settings(hosts)["changed"]


def test_the_file_keeps_its_mode_and_a_new_one_is_for_all_to_read(tmp_path):
    hosts, new = tmp_path / "hosts", tmp_path / "new"
    hosts.write_text("127.0.0.1 localhost\n")
    hosts.chmod(0o640)

    settings(hosts)
    settings(new)

    assert hosts.stat().st_mode & 0o7777 == 0o640
    assert new.stat().st_mode & 0o7777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts", "new"]


def test_check_mode_shows_zone_and_name_and_sets_neither(tmp_path):
    hosts, zone = tmp_path / "hosts", current_zone()
    other = "Asia/Taipei" if zone == "Etc/UTC" else "Etc/UTC"
    told = settings(hosts, timezone=other, check=True)

    assert told["changed"]
    assert [part["after"] for part in told["diff"]] == [f"{other}\n", "10.0.0.2 w0\n"]
    assert not hosts.exists()
    assert current_zone() == zone


def test_a_zone_out_of_its_directory_is_refused(tmp_path):
    told = settings(tmp_path / "hosts", timezone="../../etc/passwd", check=True)

    assert "there is no time zone ../../etc/passwd" in told["msg"]
    assert not (tmp_path / "hosts").exists()
