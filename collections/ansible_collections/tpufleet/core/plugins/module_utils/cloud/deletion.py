"""Deletion of one cloud resource by its identity, through APIs that delete by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import errors

#: How often the API may refuse a deletion for the moment (HTTP 429, 5xx) before it is an error.
TRIES = 10


@dataclass(frozen=True)
class Found:
    """The resource that has the name now. ``id`` is the API's, which no later one has."""

    id: str
    state: str = ""
    is_being_deleted: bool = False


def delete_exactly(
    what: str,
    expected_id: str,
    *,
    read: Callable[[], Found | None],
    delete: Callable[[], Mapping[str, Any] | None],
    wait: Callable[[Mapping[str, Any]], None],
    pause: Callable[[int], None],
    progress: Callable[[str], None] = lambda _state: None,
) -> None:
    """Delete a resource and wait until it is gone; another one of its name stays.

    Neither the Cloud TPU API v2 nor Compute Engine takes an id or etag with a deletion, so the id
    is read immediately before every try.

    Args:
        what: what is done, for errors: ``delete TPU demo (us-central2-b)``.
        expected_id: the API's id of the resource.
        read: read the resource that has the name now, None if there is none.
        delete: request the deletion once; return the operation, None if there was none to delete.
        wait: wait until an operation is done.
        pause: sleep before read number ``n``; raises DeadlineExceeded.
        progress: receives the state while it waits.

    Raises BadAnswer if the API gave no id, Unavailable, and what the callables raise.
    """
    if not expected_id:
        raise errors.BadAnswer(
            f"can't {what}: the API gave no id, so it cannot be told from another one of this "
            "name. Delete it with gcloud"
        )
    refused = 0
    for reads in itertools.count():
        if reads > 1:
            pause(reads - 2)
        found = read()
        if found is None or found.id != expected_id:
            return
        progress(found.state)
        if found.is_being_deleted:
            continue
        try:
            operation = delete()
        except errors.NoAnswer:
            continue  # it may have taken effect
        except errors.Unavailable:
            refused += 1
            if refused == TRIES:
                raise
            continue
        if operation:
            wait(operation)
