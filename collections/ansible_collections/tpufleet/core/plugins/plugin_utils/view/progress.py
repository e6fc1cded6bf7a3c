"""Progress messages of running tasks, which the callback plugin view shows in the live block."""

from __future__ import annotations

from ansible.utils.display import Display


class ProgressMessage(str):
    """A message that replaces the previous one about ``subject``, such as a host or a TPU.

    It is a string, because Ansible sends only strings from worker processes to the display.
    """

    __slots__ = ("subject",)
    subject: str

    def __new__(cls, subject: str, text: str) -> ProgressMessage:  # noqa: D102
        message = super().__new__(cls, text)
        message.subject = subject
        return message

    def __reduce__(self) -> tuple[type[ProgressMessage], tuple[str, str]]:
        """Keep the subject when the message is sent to another process."""
        return ProgressMessage, (self.subject, str(self))


def show_progress(subject: str, text: str) -> None:
    """Show ``text``; on a terminal, in place of the task's previous text about ``subject``."""
    Display().display(ProgressMessage(subject, text), screen_only=True)
