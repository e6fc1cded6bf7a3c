"""The lock on a directory of the controller."""

import threading

from ansible_collections.tpufleet.core.plugins.plugin_utils.folder_lock import locked_folder


def test_the_second_user_of_a_directory_waits_for_the_first(tmp_path):
    entered = threading.Event()

    def enter() -> None:
        with locked_folder(tmp_path / "new"):
            entered.set()

    second = threading.Thread(target=enter)
    with locked_folder(tmp_path / "new"):
        second.start()
        assert not entered.wait(0.3)
    second.join(20)

    assert entered.is_set()
