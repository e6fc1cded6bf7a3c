"""Errors of reading and changing run records."""


class RecordError(Exception):
    """A record cannot be read or written; the text is one line for the user."""


class RecordConflictError(RecordError):
    """The record has been changed by another process since it was read."""


class InvalidRecordError(RecordError):
    """A field of a record is invalid; ``problem`` says why."""

    def __init__(self, run: str, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(
            f"run {run!a}: invalid record: {field} {problem}. Only kill.yml acts on this run. "
            "Repair the record in fleet_state, or move it away"
        )
