"""Pagination of lists, with page tokens that stay valid while the list changes.

A page token contains the key of the page's last item instead of an offset. An insertion or deletion
between two requests thus neither repeats nor skips other items (https://google.aip.dev/158).
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from localcloud.api.errors import invalid

DEFAULT_SIZE = 100
LARGEST_SIZE = 1000
type Key[Item] = Callable[[Item], tuple[str, ...]]


@dataclass(frozen=True)
class Page:
    """The requested page of a list: up to ``size`` items whose keys follow ``after``.

    ``after`` is the key of the previous page's last item; None for the first page.
    """

    collection: str
    size: int
    after: tuple[str, ...] | None

    def rest[Item](self, items: Sequence[Item], key: Key[Item]) -> Sequence[Item]:
        """Return the items that follow the previous page; ``items`` is the complete list.

        ``key`` is a function that returns an item's key.
        """
        if self.after is None:
            return items
        keys = [key(item) for item in items]
        if self.after in keys:
            return items[keys.index(self.after) + 1 :]
        if keys != sorted(keys):
            return []
        # The previous page's last item was deleted, so continue at its former position.
        return [item for item, own in zip(items, keys, strict=True) if own > self.after]

    def cut[Item](self, items: Sequence[Item], key: Key[Item]) -> tuple[Sequence[Item], str]:
        """Return the first ``size`` items, and the next page's token ("" if there are no more).

        ``items`` are the result of ``rest``. ``key`` is a function that returns an item's key.
        """
        page_items = items[: self.size]
        return page_items, self.token(key(page_items[-1])) if len(items) > len(page_items) else ""

    def token(self, last: tuple[str, ...]) -> str:
        """Return the token of the page that follows the item with the key ``last``."""
        text = json.dumps([self.collection, *last], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def requested_page(
    collection: str, query: Mapping[str, str], size: str = "pageSize", largest: int = LARGEST_SIZE
) -> Page:
    """Parse the page size and ``pageToken`` from query parameters.

    ``collection`` identifies the list: a token of another list is invalid. ``size`` is the name of
    the parameter with the page size, ``largest`` the upper limit of its value. Raises HTTP 400 for
    an invalid size or token.
    """
    return Page(collection, _size(size, query.get(size, ""), largest), _after(collection, query))


def _size(name: str, text: str, largest: int) -> int:
    try:
        size = int(text or 0)
    except ValueError:
        raise invalid(name, f"{name} is '{text}', not a number") from None
    if size < 0:
        raise invalid(name, f"{name} is {size}; it must not be negative")
    if name == "maxResults" and size > largest:
        raise invalid(name, f"{name} is {size}; it must not be greater than {largest}")
    return min(size or DEFAULT_SIZE, largest)


def _after(collection: str, query: Mapping[str, str]) -> tuple[str, ...] | None:
    token = query.get("pageToken", "")
    if not token:
        return None
    refusal = invalid("pageToken", "pageToken was not issued for this list")
    try:
        padded = token + "=" * (-len(token) % 4)
        fields = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise refusal from None
    is_list_of_texts = isinstance(fields, list) and all(isinstance(field, str) for field in fields)
    if not is_list_of_texts or len(fields) < 2 or fields[0] != collection:
        raise refusal
    return tuple(fields[1:])
