"""The READMEs of roles agree with their argument_specs."""

import pytest

from docs import reference_pages as pages
from harness.playbooks import ROOT

ROLES = pages.roles()


def test_every_role_documents_its_variables():
    assert [role.name for role in ROLES] == sorted(
        entry.name for entry in (ROOT / "roles").iterdir() if entry.is_dir()
    )


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_readme_agrees_with_the_specs(role):
    text = (role / "README.md").read_text()

    assert pages.readme(text, role) == text, "to update it: python docs/reference_pages.py"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_default_belongs_to_a_documented_variable(role):
    text = (role / "README.md").read_text()

    missing = [name for name in pages._defaults(role) if f"| `{name}` |" not in text]
    assert missing == []


def test_text_outside_the_generated_part_is_kept():
    role = ROOT / "roles/base"
    before = f"Above.\n{pages.BEGIN}\nold\n{pages.END}\nBelow.\n"

    written = pages.readme(before, role)

    assert written.startswith("Above.\n")
    assert written.endswith("\nBelow.\n")
    assert "old" not in written.splitlines()
