"""The mutation check fails if its score is below the minimum; tested without mutmut."""

import pytest

from tests.mutation_check import MIN_SCORE, score_error


@pytest.mark.parametrize(("missing", "fails"), [(0, False), (1, True)])
def test_the_check_fails_below_the_least_score(missing, fails):
    killed = round(MIN_SCORE * 100) - missing
    kinds = ["timeout", *["killed"] * (killed - 1), *["survived"] * (100 - killed)]

    error = score_error({str(number): kind for number, kind in enumerate(kinds)})

    assert bool(error) == fails
    assert not fails or f"{killed}.0%" in error
