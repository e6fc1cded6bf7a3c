"""The watch lists TPUs again to confirm a loss, or before a kill if its last list is old."""

from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.plugin_utils.runs.observe import SNAPSHOT_VALID_S

from tests.collections.runs.passes import LOST, POD, answers, reason_text, running
from tests.collections.runs.records import ZONE, run_record


class Api:
    """Fake API that returns ``listings`` one after the other and then repeats the last one."""

    def __init__(self, *listings) -> None:
        self.listings, self.calls, self.sleeps = list(listings), 0, []

    def __call__(self):
        self.calls += 1
        return self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]

    def confirm(self, controller, snapshot, *records):
        watch = controller.watch(list_tpus=self, sleep=self.sleeps.append)
        return watch.confirm(records, snapshot)


@pytest.mark.parametrize(
    ("inventory", "answers", "calls", "sleeps"),
    [
        ([POD], [[POD]], 0, []),
        ([LOST], [[LOST]], 1, []),
        ([LOST], [[POD], [POD]], 1, []),
        ([LOST], [[replace(LOST, state="TERMINATED")]], 2, [1.0]),
        ([], [[LOST], [LOST]], 2, [1.0]),
        ([], [[]], 1, []),
    ],
)
def test_a_loss_is_confirmed_by_two_equal_answers_within_two_calls_of_the_api(
    controller, inventory, answers, calls, sleeps
):
    api = Api(*answers)
    controller.listing = inventory
    hosts = {"pod-w0": {"tpu_zone": ZONE, "tpu_id": "7"}}
    snapshot = replace(controller.snapshot({"pod-w0": {"runs": []}}), hosts=hosts)

    confirmed = api.confirm(controller, snapshot, run_record())

    assert (api.calls, api.sleeps) == (calls, sleeps)
    assert len(confirmed.listings) == 1 + calls
    assert confirmed.listed_at == (controller.now if calls else 0.0)


def test_the_age_of_a_list_of_tpus_counts_from_its_request(controller):
    def list_tpus():
        controller.now += 100
        return [LOST]

    requested_at, controller.listing = controller.now, [LOST]

    confirmed = controller.watch(list_tpus=list_tpus).confirm([run_record()], controller.snapshot())

    assert confirmed.listed_at == requested_at


def test_the_api_is_asked_about_an_unreachable_worker(controller):
    api = Api([POD])

    confirmed = api.confirm(controller, controller.snapshot({}), run_record())

    assert (api.calls, confirmed.of(run_record()).is_confirmed) == (1, True)


@pytest.mark.parametrize("record", [run_record(wanted="stopped"), run_record(wanted="done")])
def test_the_api_is_not_asked_for_a_run_that_needs_no_tpu(controller, record):
    api = Api([LOST])
    controller.listing = [LOST]

    api.confirm(controller, controller.snapshot(), record)

    assert api.calls == 0


def test_a_destructive_action_needs_recent_worker_answers_and_a_recent_listing(controller):
    controller.record_launch()
    hung = answers(controller, running(age=1e5))
    listed = []

    def list_tpus():
        listed.append(controller.now)
        return controller.listing

    controller.now += SNAPSHOT_VALID_S
    controller.pass_once(
        replace(hung, listed_at=controller.now - SNAPSHOT_VALID_S), list_tpus=list_tpus
    )
    assert controller.actor.playbooks[0] == "playbooks/kill.yml"
    assert listed == []

    controller.actor.plays.clear()
    hung = replace(answers(controller, running(age=1e5)), listed_at=1.0)
    controller.pass_once(hung, list_tpus=list_tpus)
    assert controller.actor.playbooks[0] == "playbooks/kill.yml"
    assert listed == [controller.now]


@pytest.mark.parametrize("listed", [LOST, replace(POD, id="8")], ids=["state", "id"])
def test_a_tpu_whose_state_or_id_changed_is_observed_again(controller, listed):
    controller.record_launch()
    hung = answers(controller, running(age=1e5))
    controller.listing = [listed]

    (outcome,) = controller.pass_once(hung)

    assert (outcome.action, controller.actor.plays) == ("nothing", [])
    assert reason_text(outcome) == (
        f"pod-w0 has written no heartbeat for 100000 s; its TPU is {listed.state} now, "
        "so the next pass observes it again"
    )
