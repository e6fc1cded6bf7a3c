"""Descriptions of OSErrors."""

import errno

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.worker.os_errors import os_error_text

FULL = (errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "subject", "text"),
    [
        (OSError(*FULL, "/opt/a"), "", "/opt/a: No space left on device"),
        (OSError(*FULL, "/opt/a"), "disk data", "/opt/a: No space left on device"),
        (OSError(*FULL), "", "No space left on device"),
        (OSError(*FULL), "disk data", "disk data: No space left on device"),
        (OSError("not a zip file"), "", "not a zip file"),
        (TimeoutError(), "", "TimeoutError"),
    ],
)
def test_an_os_error_is_described_by_its_path_or_its_subject_and_its_reason(error, subject, text):
    assert os_error_text(error, subject) == text
