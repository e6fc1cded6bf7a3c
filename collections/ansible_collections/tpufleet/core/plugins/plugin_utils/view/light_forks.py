"""What keeps Ansible's forks light: it makes one for each host of each task."""

import gc


def lighten() -> None:
    """Take all that lives now out of the garbage collector's sight, for good.

    A fork that collects garbage goes through all that its parent had, and by writing to it has it
    copied (docs.python.org/3/library/gc, "gc.freeze"). Called once more at the end, it spares
    Python its own last collection. What is garbage already stays until then.
    """
    gc.freeze()
