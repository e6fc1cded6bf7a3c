"""A worker's certificate, and what else setup leaves behind, seen from inside."""

import json


def test_a_ready_worker_says_what_it_is(host):
    told = json.loads(host.file("/opt/tpufleet/ready.json").content_string)
    assert told["environment"]
    assert told["versions"]["jax"]
    assert host.file(f"/opt/tpufleet/envs/{told['environment']}/complete.json").exists


def test_the_clock_s_zone_is_set(host):
    assert host.check_output("readlink /etc/localtime").endswith("/Etc/UTC")


def test_a_run_s_log_is_cut_while_it_is_written(host):
    log = "/var/lib/tpufleet/runs/probe/log"
    with host.sudo():
        host.check_output(f"install -d -o tpufleet -g tpufleet $(dirname {log})")
        host.check_output(f"echo much > {log} && chown tpufleet: {log}")
        try:
            host.check_output("logrotate --force --state /run/probe-logs /etc/logrotate.d/tpufleet")
            assert host.file(log).size == 0
            assert host.file(f"{log}.1.gz").exists
        finally:
            host.run("rm -r $(dirname /var/lib/tpufleet/runs/probe/log) /run/probe-logs")


def test_cutting_logs_follows_no_link_of_the_trainer(host):
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


def test_logs_are_looked_at_again_and_again(host):
    assert host.service("tpufleet-logs.timer").is_running
    assert host.service("tpufleet-logs.timer").is_enabled
