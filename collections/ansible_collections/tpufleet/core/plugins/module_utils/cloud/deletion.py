"""Deletion of the cloud resource with a given id, although the APIs delete by name only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from .changes import Progress
    from .http import GoogleApi

#: Give up when the API has temporarily refused this many deletion requests (HTTP 429 or 5xx).
TRIES = 10


@dataclass(frozen=True)
class CurrentResource:
    """The resource that has a certain name now; its ``id`` is never used for another resource."""

    id: str
    state: str = ""
    is_being_deleted: bool = False


def check_confirmed(resource: str, key: str, confirmed: Collection[str] | None) -> None:
    """Raise Different if the user has not confirmed the deletion of a resource.

    ``resource`` names the resource in the error, and ``key`` is the resource's unique key.
    ``confirmed`` are the keys of all resources that the user allows to delete; None allows any.
    """
    if confirmed is not None and key not in confirmed:
        raise errors.Different(
            f"{resource} is not deleted, because it was created after the list that you confirmed. "
            "To delete it, run the playbook again"
        )


def delete_exactly(
    api: GoogleApi,
    action: str,
    expected_id: str,
    deadline: float,
    *,
    read: Callable[[], CurrentResource | None],
    delete: Callable[[], Mapping[str, Any] | None],
    progress: Progress = lambda _state: None,
) -> None:
    """Delete a resource, and wait until it no longer exists.

    Never deletes a later resource of the same name. Neither the Cloud TPU API v2 nor Compute Engine
    accepts an id or etag in a deletion request, so the id is read immediately before every try.

    Args:
        action: description of the deletion, for errors: ``delete TPU demo (us-central2-b)``.
        expected_id: the id of the resource to delete.
        deadline: when to stop waiting, as a ``polling.clock`` time.
        read: return the resource to which the name refers now; None if there is none.
        delete: request the deletion once; return the operation, None if nothing was deleted.
        progress: receives the resource's state while this function waits.

    Raises BadAnswer if ``expected_id`` is empty, Unavailable after ``TRIES`` temporary refusals,
    and the errors of ``read``, ``delete`` and ``progress``.
    """
    if not expected_id:
        raise errors.BadAnswer(
            f"can't {action}: the API returned no id, so a newer resource of this name could be "
            "deleted instead. Delete it with gcloud"
        )
    refusals = 0
    for reads in itertools.count():
        if reads > 1:
            api.polling.pause(action, reads - 2, deadline)
        current = read()
        if current is None or current.id != expected_id:
            return
        progress(current.state)
        if current.is_being_deleted:
            continue
        try:
            operation = delete()
        except errors.NoAnswer:
            continue  # read the resource again, because the lost request may have deleted it
        except errors.Unavailable:
            refusals += 1
            if refusals == TRIES:
                raise
            continue
        if operation:
            api.wait(operation, action, deadline, lambda: progress("DELETING"))
