"""The exception for errors that the local cloud shows to users."""


class CloudError(Exception):
    """Error that the user can fix; the message says what happened and how to fix it."""
