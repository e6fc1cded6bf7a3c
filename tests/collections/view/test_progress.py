"""Progress messages: each replaces the previous one about its subject."""

import pickle
import time
from types import SimpleNamespace

from ansible_collections.tpufleet.core.plugins.action import status_follow
from ansible_collections.tpufleet.core.plugins.callback.view import CallbackModule
from ansible_collections.tpufleet.core.plugins.plugin_utils.view import progress
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.progress import ProgressMessage


def test_a_message_that_is_sent_to_another_process_keeps_its_subject():
    sent = pickle.dumps(ProgressMessage("pod", "  pod: READY"))
    message = pickle.loads(sent)  # noqa: S301 - not from outside
    assert (message, message.subject) == ("  pod: READY", "pod")


def test_a_status_replaces_the_previous_one_in_the_next_hour_too(monkeypatch):
    shown = {}
    view = SimpleNamespace(
        _tally=SimpleNamespace(progress=shown), _screen=None, _log_line=lambda _: None
    )
    display = SimpleNamespace(
        display=lambda message, **_: CallbackModule._store_progress(view, message)
    )
    monkeypatch.setattr(progress, "Display", lambda: display)
    for now in ("10:59:59", "11:00:02"):
        monkeypatch.setattr(time, "strftime", lambda _, now=now: now)
        status_follow.show(["mine  training"])

    [text] = shown.values()
    assert text.startswith("status at 11:00:02")
