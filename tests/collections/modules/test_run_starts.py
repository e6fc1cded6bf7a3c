"""What each worker is given to start, out of the plan and what the records say."""

from ansible_collections.tpufleet.core.plugins.module_utils.run_starts import run_starts

COMMON = {"lock_digest": "d", "checkpoints": "gs://b/c", "compile_cache": "", "meet_seconds": 9}


def part(run: str, process_id: int, leader: str, extra: tuple[str, ...] = ()) -> dict:
    return {
        "run": run,
        "process_id": process_id,
        "num_processes": 2,
        "leader": leader,
        "extra": extra,
        "chip": -1,
    }


PLAN = {
    "release": "r",
    "config": "steps: 1\n",
    "command": ["python", "-m", "train"],
    "parts": {
        "b-w1": part("mine-b", 1, "10.0.0.9", ("seed=2",)),
        "a-w0": part("mine-a", 0, "10.0.0.2"),
        "b-w0": part("mine-b", 0, "10.0.0.9", ("seed=2",)),
        "a-w1": part("mine-a", 1, "10.0.0.2"),
    },
}
WANTS = {
    "mine-a": {"launch": True, "record": {"attempt": 4}, "port": 8480},
    "mine-b": {"launch": False, "record": {"attempt": 7}},
}


def test_each_worker_gets_its_part_of_its_own_run():
    starts = run_starts(PLAN, WANTS, COMMON)

    assert starts["a-w1"] == {
        "run": "mine-a",
        "state": "launched",
        "launch": {
            "attempt": 4,
            "release": "r",
            "lock_digest": "d",
            "config": "steps: 1\n",
            "command": ["python", "-m", "train"],
            "coordinator": "10.0.0.2:8480",
            "num_processes": 2,
            "process_id": 1,
            "peers": ["a-w0", "a-w1"],
            "meet_seconds": 9,
            "checkpoints": "gs://b/c/mine-a",
            "compile_cache": "",
            "chip": -1,
        },
    }


def test_a_run_that_has_to_be_looked_at_first_is_only_looked_at():
    start = run_starts(PLAN, WANTS, COMMON)["b-w0"]

    assert start["state"] == "ready"
    assert start["launch"]["coordinator"] == "10.0.0.9:0"


def test_a_sweep_s_words_come_behind_the_command_and_peers_are_in_the_order_of_processes():
    launch = run_starts(PLAN, WANTS, COMMON)["b-w1"]["launch"]

    assert launch["command"] == ["python", "-m", "train", "seed=2"]
    assert launch["peers"] == ["b-w0", "b-w1"]
