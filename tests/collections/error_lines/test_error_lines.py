"""An error about bad input has at most three lines: cause, observed value, command that fixes it.

Each case makes the code report its error, and formats the error as the terminal view does.
"""

import re

import pytest

from tests.collections.error_lines import cloud, runs, trainer, workers
from tests.collections.error_lines.bad import CASES, Bad

AT_MOST = 3
COMMAND = re.compile(
    r"(?:ansible-playbook (?:-\S+ \S+ )*(?:playbooks/)?\w+\.yml"
    r"|ansible [\w-]+ -"
    r"|ansible-inventory -"
    r"|gcloud [a-z]+"
    r"|python -m (?:train|localcloud) (?:--name \S+ )?\w+"
    r"|make env)"
)
#: Each of these modules registers its cases in CASES when it is imported.
CASE_MODULES = (cloud, runs, trainer, workers)


@pytest.mark.parametrize("name", CASES)
def test_an_error_names_the_faulty_value_and_a_command_in_three_lines(
    name: str, request: pytest.FixtureRequest
):
    expected, cause_error = CASES[name]
    message = cause_error(Bad(request))
    assert 1 <= len(message.splitlines()) <= AT_MOST, message
    assert expected in message
    assert COMMAND.search(message), message
    assert "Traceback" not in message
