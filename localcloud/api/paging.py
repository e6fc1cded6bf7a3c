"""Pages of lists: filtered and sorted items, with page tokens that stay valid while a list changes.

A page token contains the key of the page's last item instead of an offset. An insertion or deletion
between two requests thus neither repeats nor skips other items (https://google.aip.dev/158). There
is one exception: if the list is not sorted by key and the page's last item is deleted, no page
follows.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localcloud.api.errors import invalid
from localcloud.api.selection import ordered, parse_filter

DEFAULT_SIZE = 100
# The largest page size by parameter: ``pageSize`` is the TPU API's, ``maxResults`` is Compute's.
LARGEST_SIZES = {"pageSize": 1000, "maxResults": 500}
Item = Mapping[str, Any]


def select_page(
    items: Sequence[Item],
    query: Mapping[str, str],
    collection: str,
    fields: Sequence[str] = (),
    *,
    key: str = "name",
    size: str = "pageSize",
    sort: Callable[[Sequence[Item], str], Sequence[Item]] | None = None,
) -> tuple[Sequence[Item], str]:
    """Return the page of ``items`` that a query requests, and the next page's token ("": none).

    ``collection`` identifies the list: a token of another list is invalid. ``fields`` are the
    fields that ``filter`` and ``orderBy`` can use, ``key`` is the field that identifies an item,
    ``size`` is the name of the parameter with the page size. ``sort`` sorts items by the text of
    ``orderBy``. Raises HTTP 400 if a parameter is invalid.
    """
    filter_text, order = query.get("filter", ""), query.get("orderBy", "")
    collection = f"{collection} {filter_text} {order}"
    page_size = _size(size, query.get(size, ""))
    after = _after(collection, query.get("pageToken", ""))
    test = parse_filter(filter_text, fields, is_compute=size == "maxResults")
    selected = [item for item in items if test(item)]
    selected = list(sort(selected, order) if sort else ordered(selected, order, fields))
    rest = _rest([item[key] for item in selected], after)
    page = selected[rest : rest + page_size]
    if rest + page_size >= len(selected):
        return page, ""
    text = json.dumps([collection, page[-1][key]], separators=(",", ":"))
    return page, base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _size(name: str, text: str) -> int:
    try:
        size = int(text or 0)
    except ValueError:
        raise invalid(name, f"{name} is '{text}', not a number") from None
    if size < 0:
        raise invalid(name, f"{name} is {size}; it must not be negative")
    largest = LARGEST_SIZES[name]
    if name == "maxResults" and size > largest:
        raise invalid(name, f"{name} is {size}; it must not be greater than {largest}")
    return min(size or DEFAULT_SIZE, largest)


def _after(collection: str, token: str) -> str | None:
    """Return the key of the previous page's last item; None for the first page."""
    if not token:
        return None
    refusal = invalid("pageToken", "pageToken was not issued for this list")
    try:
        padded = token + "=" * (-len(token) % 4)
        fields = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise refusal from None
    is_list_of_texts = isinstance(fields, list) and all(isinstance(field, str) for field in fields)
    if not is_list_of_texts or len(fields) != 2 or fields[0] != collection:
        raise refusal
    return fields[1]


def _rest(keys: Sequence[str], after: str | None) -> int:
    """Return the index of the first item that follows the previous page."""
    if after is None:
        return 0
    if after in keys:
        return keys.index(after) + 1
    if keys != sorted(keys):
        return len(keys)
    # The previous page's last item was deleted, so continue at its former position.
    return sum(key <= after for key in keys)
