"""Each row of docs/coming_from.md names a command or a setting, or says why there is none.

Each command on that page and in the cookbook is run by a test, or listed in ``NOT_RUN``.
"""

import re
from collections.abc import Iterator

from tests.docs.suggestions import ROOT, of_markdown
from tests.docs.tried_blocks import arguments, blocks, calls_of

ROWS = [
    re.split(r"(?<!\\) \| ", line.strip("| "))
    for line in (ROOT / "docs/coming_from.md").read_text().splitlines()
    if line.startswith("| ") and line != "| before | here |"
]
COMMAND = re.compile(r"`(?:ansible-playbook|ansible|ansible-console|ansible-inventory) [^`]+`")
SETTING = re.compile(r"`[a-z_]+: [^`]+` in |`tpufleet\.core\.\w+`")
REASON = re.compile(r"(?:none|nothing)[^:]*: \S|\[as with ")
PAGES = ("docs/coming_from.md", "docs/cookbook.md")
#: Values that select what a command does. Other values are names, paths or numbers of the user.
CHOICES = {"done", "jupyter", "newest", "slice", "tensorboard", "true"}
#: Beginnings of the commands that no test runs literally, with the reason.
NOT_RUN = {
    "ansible-console ": "it reads from a terminal, and all its code is in ansible-core",
    "ansible-playbook train.yml -e tpu=pod -e run=first -e code=../my-repo -e requirements=": "a "
    "function of tests/journey/test_foreign_trainers.py builds the same command",
}


def choices_of(command: list[str]) -> Iterator[str]:
    """Yield the options of a command, without values that a user may choose freely.

    An option keeps its value only if the value is in ``CHOICES`` or is the name of a module.
    """
    options = iter(command[1:])
    for option in options:
        if option in ("-m", "--limit", "--tags"):
            value = next(options, "")
            yield f"-m {value.rpartition('.')[2]}" if option == "-m" else option
        elif option == "-e":
            assignment = next(options, "")
            name, _, value = assignment.partition("=")
            if key := re.match(r'\{"(\w+)"', assignment):
                yield f"-e {key[1]}"
            elif name not in ("run", "tpu"):
                yield f"-e {name}={value}" if value in CHOICES else f"-e {name}"
        elif option.startswith("-") and option != "-a":
            yield option


def test_each_row_has_two_cells():
    assert len(ROWS) > 65
    assert [row for row in ROWS if len(row) != 2] == []


def test_each_row_names_a_command_or_a_setting_or_says_why_there_is_none():
    incomplete = [
        row
        for row in ROWS
        if not any(pattern.search(row[-1]) for pattern in (COMMAND, SETTING, REASON))
    ]
    assert incomplete == []


def test_each_command_is_run_by_a_test_or_listed_with_the_reason():
    files = [path for name in ("tests", "localcloud") for path in (ROOT / name).rglob("*.py")]
    calls = [call for path in files for call in calls_of(path)]
    shell_blocks = [block for block in blocks() if not block.by.endswith(".py")]
    calls += [arguments(command) for block in shell_blocks for command in block.commands]
    run: dict[str, list[set[str]]] = {}
    for call in calls:
        options = set(choices_of(call))
        run.setdefault(call[0], []).append(
            options | {option.partition("=")[0] for option in options}
        )

    commands = [
        text.text.replace("…", "")
        for page in PAGES
        for text in of_markdown((ROOT / page).read_text(), page)
        if re.match(r"ansible(?:-\w+)? ", text.text)
    ]
    untried = [
        command
        for command in commands
        for split_command in [arguments(command)]
        if not any(
            set(choices_of(split_command)) <= options for options in run.get(split_command[0], [])
        )
    ]
    assert len(commands) > 100
    assert [command for command in untried if not command.startswith(tuple(NOT_RUN))] == []
    assert [
        beginning
        for beginning in NOT_RUN
        if not any(command.startswith(beginning) for command in untried)
    ] == []
