"""The mutation check: its minimum score, and the tests that it excludes; without mutmut."""

import tomllib

import pytest

from tests.mutation_check import MIN_SCORE, ROOT, score_error


def test_the_tests_that_the_check_excludes_exist():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    options = settings["pytest_add_cli_args"]
    left_out = [option.partition("=")[2] for option in options if option.startswith("--deselect=")]

    assert left_out
    for file, _, name in (test.partition("::") for test in left_out):
        assert f"def {name}(" in (ROOT / file).read_text()


@pytest.mark.parametrize(("missing", "fails"), [(0, False), (1, True)])
def test_the_check_fails_below_the_least_score(missing, fails):
    killed = round(MIN_SCORE * 100) - missing
    kinds = ["timeout", *["killed"] * (killed - 1), *["survived"] * (100 - killed)]

    error = score_error({str(number): kind for number, kind in enumerate(kinds)})

    assert bool(error) == fails
    assert not fails or f"{killed}.0%" in error
