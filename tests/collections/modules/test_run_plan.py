"""Which processes a run has, by the inventory alone."""

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.run import RunError
from ansible_collections.tpufleet.core.plugins.module_utils.run_plan import (
    Part,
    Worker,
    find_config,
    parts,
    port,
    read_config,
    run_name,
    words,
)


def workers(tpu: str, count: int = 2) -> list[Worker]:
    return [Worker(f"{tpu}-w{index}", tpu, index, count, "10.0.0.2") for index in range(count)]


def test_each_worker_of_a_tpu_is_the_process_of_its_index():
    assert parts(workers("demo"), "mine") == {
        "demo-w0": Part("mine", 0, 2, "10.0.0.2"),
        "demo-w1": Part("mine", 1, 2, "10.0.0.2"),
    }


def test_several_tpus_have_a_run_each_with_their_name_behind_it():
    found = parts([*workers("a"), *workers("b", 1)], "mine")

    assert {host: part.run for host, part in found.items()} == {
        "a-w0": "mine-a",
        "a-w1": "mine-a",
        "b-w0": "mine-b",
    }


def test_a_slice_is_never_launched_on_a_part_of_its_workers():
    with pytest.raises(RunError, match="TPU demo has 4 workers and a run takes all of them"):
        parts(workers("demo", 4)[:3], "mine")


def test_no_worker_at_all_is_an_error():
    with pytest.raises(RunError, match="no READY worker"):
        parts([], "mine")


def test_attempts_have_ports_of_their_own():
    assert len({port(attempt) for attempt in range(1, 500)}) == 499
    assert all(1024 < port(attempt) < 32768 for attempt in (1, 999, 1000, 10**9))


def test_a_config_is_found_where_the_command_was_typed_first(tmp_path):
    for place in ("typed", "project"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.yml").write_text(place)
    places = [tmp_path / "typed", tmp_path / "project"]

    assert find_config("a.yml", places).read_text() == "typed"
    (tmp_path / "typed/a.yml").unlink()
    assert find_config("a.yml", places).read_text() == "project"


def test_a_missing_config_is_named_with_where_it_was_looked_for(tmp_path):
    with pytest.raises(RunError, match=f"no config a.yml in {tmp_path}"):
        find_config("a.yml", [tmp_path])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "is no YAML: line 1"),
        ("just words", "holds no settings"),
        ("", "holds no settings"),
    ],
)
def test_a_config_that_the_trainer_can_not_read_is_named(tmp_path, text, complaint):
    path = tmp_path / "a.yml"
    path.write_text(text)

    with pytest.raises(RunError, match=complaint):
        read_config(path, strict=True)


def test_a_foreign_trainers_config_may_be_anything(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[a]\n")

    assert read_config(path, strict=False) == "[a]\n"


def test_overrides_stand_behind_the_trainers_words():
    assert words(None, "steps=10 'name=a b'")[-3:] == ["{config}", "steps=10", "name=a b"]
    assert words("python x.py", ["a=1"]) == ["python", "x.py", "a=1"]


@pytest.mark.parametrize("overrides", ["steps", "'open"])
def test_an_override_that_is_none_is_named(overrides):
    with pytest.raises(RunError, match="set"):
        words(None, overrides)


def test_a_run_is_named_by_its_config_unless_it_has_a_name(tmp_path):
    assert run_name(None, tmp_path / "shakespeare.yml", []) == "shakespeare"
    assert run_name("mine", tmp_path / "shakespeare.yml", []) == "mine"
    with pytest.raises(RunError, match="-e run=NAME"):
        run_name(None, None, ["python", "x.py"])


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "../a", "ä", "a" * 101])
def test_a_name_that_can_not_be_a_unit_or_a_file_is_refused(name):
    with pytest.raises(RunError):
        parts(workers("demo"), name)
