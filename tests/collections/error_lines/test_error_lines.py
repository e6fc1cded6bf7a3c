"""Every bad input is answered in three lines at the most: what, what was seen, the command.

Each case takes the words from the code that says them to a person, and shows them as the terminal
view does.
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
#: What was read with these has put its cases into CASES.
READ = (cloud, runs, trainer, workers)


@pytest.mark.parametrize("name", CASES)
def test_three_lines_name_the_thing_and_the_command(name: str, request: pytest.FixtureRequest):
    thing, tell = CASES[name]
    said = tell(Bad(request))
    assert 1 <= len(said.splitlines()) <= AT_MOST, said
    assert thing in said
    assert COMMAND.search(said), said
    assert "Traceback" not in said
