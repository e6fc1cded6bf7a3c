"""``python -m localcloud bucket``: the bucket gone, back, or without the right to write."""

import argparse
from collections.abc import Callable, Mapping

from localcloud import bucket
from localcloud.place import Place

_VERBS: Mapping[str, Callable[[Place], None]] = {
    "start": bucket.start,
    "stop": bucket.stop,
    "read-only": bucket.make_read_only,
}
_HELP = {
    "start": "let it answer again, and be written to",
    "stop": "an outage: connections are refused, the objects stay",
    "read-only": "every change is a 403, as for an account without the right to write",
}


def describe(parser: argparse.ArgumentParser) -> None:
    """Describe the verb's own verbs."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, text in _HELP.items():
        verbs.add_parser(name, help=text, description=text)


def run(place: Place, options: argparse.Namespace) -> str:
    """Do one of them; give the line that says how the bucket stands then."""
    _VERBS[options.what](place)
    return line(place)


def line(place: Place) -> str:
    """Say how the bucket stands, in a line."""
    found = bucket.must_see(place)
    return f"bucket gs://{bucket.NAME} at {found.endpoint}: {found.state}"
