"""Strict parsing of configs; every error is one line that names the key."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.core.config import Config, ConfigError, build, check_batch_divisible, load
from train.strict import overlay


def test_an_empty_file_means_the_defaults(tmp_path: Path):
    (tmp_path / "c.yml").write_text("")
    assert load(tmp_path / "c.yml") == Config()


def test_the_last_override_changes_only_its_nested_key(tmp_path: Path):
    (tmp_path / "c.yml").write_text("model: {layers: 3, heads: 2}\n")
    cfg = load(tmp_path / "c.yml", ["model.layers=4", "model.layers=5"])
    assert (cfg.model.layers, cfg.model.heads) == (5, 2)


def test_a_number_in_scientific_notation_is_a_number(tmp_path: Path):
    (tmp_path / "c.yml").write_text("optimizer: {learning_rate: 1e-3}\n")
    assert load(tmp_path / "c.yml").optimizer.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"stepz": 1}, "stepz: unknown key; allowed here: steps, batch, seed"),
        ({"model": {"depth": 1}}, "model.depth: unknown key; allowed here: layers, heads"),
        ({"model": 3}, "model: must be a mapping, not int '3'"),
        (
            {"steps": 2**31},
            "steps: must be a whole number of at least 1 and at most 2147483647, not",
        ),
        ({"batch": 0}, "batch: must be a whole number of at least 1, not int '0'"),
        ({"batch": "many"}, "batch: must be a whole number of at least 1, not str 'many'"),
        ({"batch": True}, "batch: must be a whole number of at least 1, not bool 'True'"),
        ({"batch": 1.5}, "batch: must be a whole number of at least 1, not float '1.5'"),
        ({"model": {"tied": 1}}, "model.tied: must be true or false, not int '1'"),
        ({"data": {"text": 3}}, "data.text: must be text or null, not int '3'"),
        ({"optimizer": {"frozen": "a"}}, "optimizer.frozen: must be a list of strings, not str"),
        ({"optimizer": {"frozen": ["a", 1]}}, "optimizer.frozen[1]: must be text, not int '1'"),
        ({"data": {"heldout": 1}}, "data.heldout: must be a number of at least 0 and at most 0.9"),
        (
            {"optimizer": {"clip": 0}},
            "optimizer.clip: must be a number above 0 or null, not float '0.0'",
        ),
        ({"optimizer": {"clip": float("nan")}}, "optimizer.clip: must be a number above 0"),
        ({"optimizer": {"clip": float("inf")}}, "optimizer.clip: must be a number above 0"),
        ({"data": {"text": ""}}, "data.text: must be a path or null, not ''"),
        ({"init_from": "a\0b"}, r"init_from: must be a path or null, not 'a\x00b'"),
        (
            {"checkpoint": {"directory": "~nobody-at-all/c"}},
            "checkpoint.directory: must be a path, with ~ for the home of an existing user, not",
        ),
        ({"optimizer": {"weight_decay": 10**400}}, "optimizer.weight_decay: must be a number of"),
        ({"sample": {"prompt": ""}}, "sample.prompt: must not be empty"),
        ({"model": {"qk_norm": True}}, "model.qk_norm: needs model.norm=rms, not layer"),
        (
            {"model": {"width": 10, "heads": 3}},
            "model.width: must be a multiple of model.heads (3), not 10",
        ),
        (
            {"compute": {"steps_per_call": 10}, "checkpoint": {"every": 15}},
            "checkpoint.every: must be a multiple of compute.steps_per_call (10), not 15",
        ),
        (
            {"compute": {"steps_per_call": 10}, "evaluate": {"every": 15}},
            "evaluate.every: must be a multiple of compute.steps_per_call (10), not 15",
        ),
        (
            {"compute": {"steps_per_call": 10}, "sample": {"every": 15}},
            "sample.every: must be a multiple of compute.steps_per_call (10), not 15",
        ),
        (
            {"compute": {"microbatch": 2, "accumulate": 2}},
            "microbatch and accumulate are both set. Set only one",
        ),
    ],
)
def test_an_invalid_value_is_named_in_one_line(tree: dict, message: str):
    with pytest.raises(ConfigError) as error:
        build(tree)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n- b\n", "must be a mapping of keys to values, not list"),
        ("steps: [1\n", "invalid YAML"),
        ("a: b: c\n", "invalid YAML"),
        ("name: \xff\n".encode("latin-1"), "invalid YAML"),
        ("name: 2024-02-31\n", "invalid YAML: day"),
        (f"steps: {'9' * 5000}\n", "invalid YAML: Exceeds the limit"),
        ("[" * 5000, "invalid YAML: maximum recursion depth exceeded"),
        ("batch: 8\nsteps: 5\nbatch: 2\n", "invalid YAML: key batch is repeated in"),
        ("model: {width: 8, width: 16}\n", "key width is repeated"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_a_file_that_is_not_a_mapping_is_reported(
    tmp_path: Path, content: str | bytes, message: str
):
    path = tmp_path / "c.yml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("word", ["steps", "=3", ""])
def test_an_override_without_key_or_value_is_refused(tmp_path: Path, word: str):
    (tmp_path / "c.yml").write_text("")
    with pytest.raises(ConfigError, match="must be key=value"):
        load(tmp_path / "c.yml", [word])


@pytest.mark.parametrize("value", ["2024-02-31", "{a: 1, a: 2}", "*.txt"])
def test_an_override_that_is_not_yaml_is_refused(value: str):
    with pytest.raises(ConfigError, match=r"^steps: invalid YAML: .* in quotes: ") as error:
        overlay({}, [f"steps={value}"])
    assert "\n" not in str(error.value)


def test_a_key_that_overrides_a_yaml_merge_is_accepted():
    merged = overlay({}, ["model={<<: {width: 8, heads: 2}, width: 16}"])
    assert merged == {"model": {"width": 16, "heads": 2}}
    nested = overlay({}, ["all={a: {b: &x {<<: {width: 8}, width: 16}}, c: {<<: *x}}"])
    assert nested == {"all": {"a": {"b": {"width": 16}}, "c": {"width": 16}}}


def test_an_override_below_a_scalar_is_refused(tmp_path: Path):
    (tmp_path / "c.yml").write_text("steps: 3\n")
    with pytest.raises(ConfigError, match="steps: must be a whole number"):
        load(tmp_path / "c.yml", ["steps.more=3"])


@given(st.integers(1, 200), st.integers(1, 64))
def test_a_batch_that_does_not_divide_evenly_is_refused_with_both_numbers(
    batch: int, processes: int
):
    cfg = build({"batch": batch})
    if batch % processes == 0:
        check_batch_divisible(cfg, processes, "processes")
    else:
        with pytest.raises(ConfigError, match=rf"processes \({processes}\), not {batch}"):
            check_batch_divisible(cfg, processes, "processes")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    ),
    st.sampled_from(["steps", "model", "data", "seed", "init_from", "other"]),
)
def test_any_value_is_accepted_or_refused_in_one_line(value: object, key: str):
    try:
        build({key: value})
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
