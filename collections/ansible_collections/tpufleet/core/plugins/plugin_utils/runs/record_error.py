"""Errors of reading and changing run records."""


class RecordError(Exception):
    """A record cannot be read or written; the message is one line."""


class RecordConflictError(RecordError):
    """The record has been changed by another process since it was read."""


class UnusableRecordError(RecordError):
    """A record is not a JSON object, or a field of it is invalid."""
