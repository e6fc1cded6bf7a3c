"""Timers under a real systemd: which ones run, which are skipped, and their arguments.

A cloud that TPUFLEET_TEST_CLOUD names needs a worker demo-w0.
"""

import pytest

from harness.fleet import Fleet, fleet_entry, write_inventory
from harness.own_cloud import own_or_existing_cloud

pytestmark = [pytest.mark.machines, pytest.mark.long]
LOG = "/var/log/timers"
WORK = f'#!/bin/sh\nprintf \'%s %s\\n\' "$*" "$ODD" >> {LOG}\n'
ODD = "$HOME ${HOME} 50% \"q\" 'a' \\n ä"
STAMPS = "/var/lib/systemd/timers"


class Controller:
    """The machine demo-w0, used as a controller with systemd."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def sh(self, line: str) -> str:
        return self.fleet.on("demo-w0", "sh", "-c", line)

    def schedule(self, **options) -> dict:
        tool = {"project": "/", "tool": "/usr/local/bin/50% work", "inventories": ["here"]}
        return self.fleet.module("demo-w0", "tpufleet.core.run_schedule", {**tool, **options})

    def wait_for_commands(self) -> list[str]:
        """Wait until the watch has run twice more; return the logged commands of other timers."""
        count = f"$(grep -c watch.yml {LOG} || true)"
        self.sh(f"n={count}; until test {count} -ge $((n + 2)); do sleep 0.2; done")
        return [line for line in self.fleet.read(0, LOG).splitlines() if "watch.yml" not in line]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    inventory = write_inventory(
        tmp_path_factory.mktemp("inventory"), tpu_fleet=[fleet_entry("demo", 1)]
    )
    with own_or_existing_cloud("timers") as cloud:
        fleet = Fleet(cloud, inventory)
        fleet.must_play("playbooks/create.yml")
        yield fleet


@pytest.fixture
def controller(fleet):
    controller = Controller(fleet)
    write = f"cat > '/usr/local/bin/50% work' <<'END'\n{WORK}END\n"
    controller.sh(f"{write}chmod +x '/usr/local/bin/50% work'; : > {LOG}")
    controller.schedule(state="present", verb="watch", every="1s", environment={"ODD": ODD})
    yield controller
    for name in controller.schedule(state="list")["timers"]:
        controller.schedule(state="absent", name=name)


def test_timers_are_created_listed_and_removed(controller):
    again = controller.schedule(state="present", verb="watch", every="1s", environment={"ODD": ODD})
    assert not again["changed"]
    assert controller.schedule(state="present", verb="kill", target="mine", at="2099-01-01 18:00")[
        "changed"
    ]
    reply = controller.schedule(state="list")
    assert reply["timers"] == ["tpufleet-do-kill-mine", "tpufleet-do-watch"]
    assert any("2099-01-01 18:00" in line for line in reply["lines"])

    assert controller.wait_for_commands() == []
    for name in reply["timers"]:
        controller.schedule(state="absent", name=name)

    assert controller.schedule(state="list")["timers"] == []
    controller.sh("! ls /etc/systemd/system/tpufleet-do-*")


def test_dollars_percents_and_quotes_reach_the_playbook(controller):
    controller.wait_for_commands()
    first = controller.fleet.read(0, LOG).splitlines()[0]
    assert first == f"-i here playbooks/watch.yml {ODD}"


def test_a_timer_runs_at_its_time(controller):
    controller.schedule(
        state="present",
        verb="delete",
        target="demo",
        zone="us-central2-b",
        node_id="123",
        at="*:*:0/1",
    )
    controller.sh(f"until grep -q delete.yml {LOG}; do sleep 0.2; done")
    assert set(controller.wait_for_commands()) == {
        "-i here playbooks/delete.yml -e tpu=demo -e zone=us-central2-b -e node_id=123 -e yes=true "
    }


def test_a_missed_time_is_not_caught_up(controller):
    """systemd's stamp of the timer is old, as if the controller was off at the scheduled time."""
    name = "tpufleet-do-kill-mine"
    hour_ago = controller.sh("date -d '1 hour ago' +%H:%M").strip()
    backdate = f"touch -d '2 days ago' {STAMPS}/stamp-{name}.timer"
    kill = {"state": "present", "verb": "kill", "target": "mine"}
    controller.sh(f"mkdir -p {STAMPS}; {backdate}")

    controller.schedule(**kill, at=f"*-*-* {hour_ago}")
    controller.schedule(state="absent", name=name)
    controller.sh(backdate)
    controller.schedule(**kill, at=f"*-*-* {hour_ago}")
    controller.schedule(**kill, at=f"*-*-* {hour_ago}:01")
    controller.sh(f"{backdate}; systemctl stop {name}.timer; systemctl start {name}.timer")

    assert controller.wait_for_commands() == []


def test_a_service_that_starts_late_is_skipped(controller):
    """Systemd starts a service late when the computer wakes up from suspend."""
    kill = {"state": "present", "verb": "kill", "target": "mine"}
    hour_ago = controller.sh("date -d '1 hour ago' +%H:%M").strip()
    controller.schedule(**kill, at=f"*-*-* {hour_ago}")
    controller.sh("systemctl start tpufleet-do-kill-mine.service")
    assert controller.wait_for_commands() == []

    minute_ago = controller.sh("date -d '1 minute ago' +%H:%M:%S").strip()
    controller.schedule(**kill, at=f"*-*-* {minute_ago}")
    controller.sh("systemctl start tpufleet-do-kill-mine.service")
    assert controller.wait_for_commands() == ["-i here playbooks/kill.yml -e run=mine "]
