"""The one error that the local cloud shows to people: what was seen, and what mends it."""


class CloudError(Exception):
    """Something the person at the terminal can mend."""
