"""A role's README says of its variables what its argument_specs say."""

import importlib.util
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location(
    "reference_pages", PROJECT / "docs/reference_pages.py"
)
assert _SPEC
assert _SPEC.loader
pages = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(pages)

ROLES = pages.roles()


def test_every_role_says_what_it_takes():
    assert [role.name for role in ROLES] == sorted(
        entry.name for entry in (PROJECT / "roles").iterdir() if entry.is_dir()
    )


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_readme_is_in_step_with_the_specs(role):
    told = (role / "README.md").read_text()

    assert pages.readme(told, role) == told, "python docs/reference_pages.py writes it anew"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_default_is_of_a_variable_that_the_specs_name(role):
    named = (role / "README.md").read_text()

    missing = [name for name in pages._defaults(role) if f"| `{name}` |" not in named]
    assert missing == []


def test_what_a_person_wrote_beside_the_generated_part_stays():
    role = PROJECT / "roles/base"
    before = f"Above.\n{pages.BEGIN}\nold\n{pages.END}\nBelow.\n"

    written = pages.readme(before, role)

    assert written.startswith("Above.\n")
    assert written.endswith("\nBelow.\n")
    assert "old" not in written.splitlines()
