"""The reference of the trainer's config: keys with their values, defaults and meanings."""

import pytest

from docs import config_page


@pytest.mark.parametrize(
    "row",
    [
        "| `batch` | a whole number of at least 1 | Sequences per step, over all processes. "
        "(default `16`) |",
        "| `model.norm` | layer or rms | (default `layer`) |",
        "| `model.rotary.theta` | a number above 0 | Base of the wavelengths, which are from "
        "`2 pi` to almost `2 pi theta` tokens. (default `10000.0`) |",
        "| `data.dataset.split` | text | A split, or a slice of one: `train[:1%]`. "
        "(default `train`) |",
        "| `optimizer.frozen` | a list of strings | Parameters that are not trained, by name or "
        'pattern: `["tokens_vd", "*norm*"]`. An unknown name is an error that lists all names. '
        "(default `[]`) |",
        '| `sample.prompt` | text | Beginning of the text; not empty. (default `"\\n"`) |',
    ],
)
def test_a_key_has_its_values_its_meaning_and_its_default(row):
    assert row in config_page.page().splitlines()


def test_an_inherited_key_has_the_description_of_its_base_class():
    [row] = [line for line in config_page.page().splitlines() if line.startswith("| `data.text` ")]

    assert "A path or a glob pattern of files" in row
