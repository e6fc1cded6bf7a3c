"""The error that the local cloud shows to users."""


class CloudError(Exception):
    """A failure that the user can fix; the text says what happened and how to fix it."""
