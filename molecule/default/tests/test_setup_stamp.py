"""The setup stamp, and the time zone, limits and log rotation that setup configures."""

import json


def test_the_stamp_names_a_complete_environment(host):
    stamp = json.loads(host.file("/opt/tpufleet/ready.json").content_string)
    assert len(stamp["content"]) == 64
    assert host.file(f"/opt/tpufleet/envs/{stamp['environment']}/complete.json").exists


def test_the_time_zone_is_set(host):
    assert host.check_output("readlink /etc/localtime").endswith("/Etc/UTC")
    assert host.file("/etc/timezone").content_string == "Etc/UTC\n"


def test_the_journal_and_open_files_are_limited(host):
    journald = "systemd-analyze cat-config systemd/journald.conf"
    assert "SystemMaxUse=1G" in host.check_output(journald)
    limits = host.file("/etc/security/limits.d/tpufleet.conf").content_string
    assert "tpufleet - nofile 1048576" in limits


def test_the_log_of_a_run_is_rotated_while_it_is_written(host):
    log = "/var/lib/tpufleet/runs/probe/log"
    with host.sudo():
        host.check_output(f"install -d -o tpufleet -g tpufleet $(dirname {log})")
        host.check_output(f"echo much > {log} && chown tpufleet: {log}")
        try:
            host.check_output("logrotate --force --state /run/probe-logs /etc/logrotate.d/tpufleet")
            assert host.file(log).size == 0
            assert host.file(f"{log}.1").exists
        finally:
            host.run("rm -r $(dirname /var/lib/tpufleet/runs/probe/log) /run/probe-logs")


def test_log_rotation_follows_no_links_of_the_trainer(host):
    folder, target = "/var/lib/tpufleet/runs/probe", "/run/probe-target"
    with host.sudo():
        host.check_output(f"echo roots > {target} && chmod 600 {target}")
        host.check_output(f"install -d -o tpufleet -g tpufleet {folder}")
        host.check_output(f"ln -s {target} {folder}/log && chown -h tpufleet: {folder}/log")
        try:
            host.run("logrotate --force --state /run/probe-logs /etc/logrotate.d/tpufleet")
            assert host.check_output(f"cat {target}") == "roots"
            assert host.check_output(f"find {folder} ! -user tpufleet") == ""
        finally:
            host.run(f"rm -r {folder} {target} /run/probe-logs")


def test_the_timer_of_log_rotation_is_active(host):
    assert host.service("tpufleet-logs.timer").is_running
    assert host.service("tpufleet-logs.timer").is_enabled
