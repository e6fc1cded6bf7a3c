"""Without a terminal, the progress of a task that takes minutes is printed on a few lines."""

from types import SimpleNamespace

from ansible_collections.tpufleet.core.plugins.plugin_utils.view import screen as screen_module
from ansible_collections.tpufleet.core.plugins.plugin_utils.view.screen import (
    MAX_LINE_CHARS,
    Screen,
)

TASK = "jax : Install the packages of the lock file and check that JAX sees its devices  bench"


def test_a_long_task_is_named_once_and_its_times_share_the_lines_below(monkeypatch):
    """The view prints a task's elapsed time every 9 s for 270 s; then a change is printed."""
    monkeypatch.setattr(screen_module, "QUIET_S", -1.0)
    texts: list[str] = []

    def display(text: str, newline: bool = True, **_: object) -> None:
        texts.append(text + ("\n" if newline else ""))

    times = iter(range(9, 279, 9))

    def brief_progress(_now: float) -> tuple[str, str]:
        return TASK, f"1/32 {next(times)} s"

    ansible_display = SimpleNamespace(display=display, prompt_until=None)

    screen = Screen(ansible_display, None, lambda _: ["busy"], brief_progress, lambda _: False)
    # Stop the thread that prints the progress: the test calls _print_progress instead.
    screen._stopped.set()
    screen._ticker.join()
    for _ in range(30):
        screen._print_progress()
    screen.display("changed")
    screen.close()
    printed = "".join(texts)
    *lines, last = printed.splitlines()

    assert printed.count(TASK) == 1
    assert printed.startswith(f"  {TASK}  1/32 9 s")
    assert last == "changed"
    assert len(lines) <= 5
    assert all(len(line) <= MAX_LINE_CHARS + 8 for line in lines)
    assert all(line.startswith("    1/32 ") for line in lines[1:])
    assert lines[-1].endswith(" s")
