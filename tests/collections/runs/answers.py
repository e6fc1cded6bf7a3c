"""Workers' reports about runs (results of run_info), for tests."""

from typing import Any

ACTIVE = ("starting", "waiting", "running", "training", "stopping")
ENDS = {
    "0": ("done", ""),
    "75": ("interrupted", "saved"),
    "77": ("interrupted", "peer_ended"),
    "TERM": ("interrupted", "not_saved"),
    "2": ("failed", "bad_config"),
    "3": ("failed", "loss_not_a_number"),
    "76": ("failed", "rendezvous_failed"),
    "127": ("failed", "command_not_found"),
    "KILL": ("failed", "killed"),
}


def report(state: str = "training", reason_code: str = "", **more: Any) -> dict[str, Any]:
    """Return a worker's report about attempt 1 of the run ``mine``."""
    is_active = state in ACTIVE
    return {
        "run": "mine",
        "attempt": 1,
        "state": state,
        "reason_code": reason_code,
        "exit_code": None,
        "signal": "",
        "active": is_active,
        "ended_at": None if is_active else 1.0,
        "heartbeat": None,
        "heartbeat_age": None,
        "error": "",
        "log": [],
    } | more


def report_end(code: str, **more: Any) -> dict[str, Any]:
    """Return a worker's report about a run that ended with an exit code or a signal's name."""
    state, reason_code = ENDS.get(code, ("failed", "exit_code" if code.isdecimal() else "signal"))
    exited = {"exit_code": int(code)} if code.isdecimal() else {"signal": code}
    return report(state, reason_code, **exited | more)
