"""Checkpoints: damage, owners, and buckets."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trainer_processes import restored_here, train_here
from tests.train.bucket import NAME
from train.core.config import CheckpointConfig, Config, ConfigError, LoraConfig
from train.core.data import Corpus
from train.data.corpus import prepare_all
from train.run import checkpoint as checkpoint_module
from train.run import contract, mesh
from train.run.checkpoint import (
    DAMAGED,
    MANIFEST,
    NONE,
    OWNER,
    Checkpoints,
    Manifest,
    has_separate_copies,
    identity,
)
from train.run.contract import Contract, check_writable
from train.storage import open_filesystem

SAVED_STEPS = {"30", "40"}


@pytest.fixture
def saved(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run's checkpoints of steps 30 and 40."""
    return shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")


def opened(directory: Path, run: str | None = "alone") -> Checkpoints:
    return Checkpoints(directory, CheckpointConfig(), {}, run)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {OWNER}


def biggest(checkpoint: Path) -> Path:
    return max((p for p in checkpoint.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def cut_short(checkpoint: Path) -> None:
    with biggest(checkpoint).open("r+b") as file:
        file.truncate(biggest(checkpoint).stat().st_size - 1)


def lose_a_file(checkpoint: Path) -> None:
    biggest(checkpoint).unlink()


def change_a_byte(checkpoint: Path) -> None:
    path = next(path for path in checkpoint.rglob("_METADATA"))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


DAMAGES = {
    cut_short: "bytes instead of",
    lose_a_file: "is missing",
    change_a_byte: "_METADATA does not match its checksum",
}
MANIFESTS = {
    "cut short": '{"of": {}, "fil',
    "a list of files": '{"of": {}, "files": ["state"]}',
    "no files": '{"of": {}, "files": {}}',
    "a length as text": '{"of": {}, "files": {"state": ["12", 0]}}',
    "nested": "[" * 100_000,
    "a file outside": '{"of": {}, "files": {"../30/manifest.json": [1, 0]}}',
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
FILES = JSON | st.dictionaries(st.text(max_size=9), st.lists(JSON, max_size=3), max_size=3)


@pytest.mark.parametrize("damage", [*DAMAGES, *MANIFESTS])
def test_a_damaged_checkpoint_is_renamed_and_the_previous_one_is_used(
    saved: Path, damage: Callable[[Path], None] | str, caplog: pytest.LogCaptureFixture
):
    if damage in MANIFESTS:
        (saved / "40" / MANIFEST).write_text(MANIFESTS[damage])
    else:
        damage(saved / "40")
    with caplog.at_level(logging.WARNING):
        assert opened(saved).latest == 30
    assert names(saved) == {"30", "40.damaged"}
    assert DAMAGES.get(damage, DAMAGED) in caplog.text
    assert "40: renamed to 40.damaged" in caplog.text


def test_a_step_that_is_damaged_again_replaces_its_renamed_checkpoint(saved: Path):
    cut_short(saved / "40")
    shutil.copytree(saved / "40", saved / "40.damaged")
    (saved / "40.damaged" / "first").touch()
    assert opened(saved).latest == 30
    assert names(saved) == {"30", "40.damaged"}
    assert {"first", "40"}.isdisjoint(names(saved / "40.damaged"))


@given(
    st.text() | st.builds(json.dumps, JSON | st.fixed_dictionaries({"of": JSON, "files": FILES}))
)
def test_parse_accepts_only_valid_manifests(text: str):
    try:
        manifest = Manifest.parse(text)
    except ValueError:
        return
    assert isinstance(manifest.of, dict)
    for name, (size, crc) in manifest.files.items():
        assert ".." not in name.split("/")
        assert isinstance(size, int)
        assert size >= 0
        assert crc is None or isinstance(crc, int)


def test_a_reader_skips_a_damaged_checkpoint_and_does_not_move_it(saved: Path):
    cut_short(saved / "40")
    assert opened(saved, run=None).latest == 30
    assert names(saved) == SAVED_STEPS


@pytest.mark.parametrize("unfinished", [set(), {"40"}])
def test_a_run_whose_checkpoints_are_all_damaged_is_refused(saved: Path, unfinished: set[str]):
    for step in unfinished:
        (saved / step / MANIFEST).unlink()
    for step in SAVED_STEPS - unfinished:
        cut_short(saved / step)
    for _ in range(2):
        with pytest.raises(ConfigError, match="each checkpoint is damaged"):
            opened(saved)
    assert names(saved) == {f"{step}.damaged" for step in SAVED_STEPS - unfinished} | unfinished


@pytest.mark.parametrize(
    ("complete", "latest", "has_owner"),
    [({"30"}, 30, True), ({"30"}, 30, False), (set(), None, True)],
)
def test_an_unfinished_save_is_removed(
    saved: Path, complete: set[str], latest: int | None, has_owner: bool
):
    for step in SAVED_STEPS - {"40"} - complete:
        shutil.rmtree(saved / step)
    if not has_owner:
        (saved / OWNER).unlink()
    (saved / "40" / MANIFEST).unlink()
    (saved / "50.orbax-checkpoint-tmp").mkdir()
    assert opened(saved).latest == latest
    assert names(saved) == complete


@pytest.mark.parametrize(
    ("steps", "is_owned", "manifest"),
    [
        ({"40"}, False, None),
        (SAVED_STEPS, False, "{}"),
        (SAVED_STEPS, True, None),
    ],
)
def test_checkpoints_that_may_belong_to_another_program_are_refused_and_stay(
    saved: Path, steps: set[str], is_owned: bool, manifest: str | None
):
    for step in SAVED_STEPS - steps:
        shutil.rmtree(saved / step)
    for step in steps:
        (saved / step / MANIFEST).unlink()
        if manifest is not None:
            (saved / step / MANIFEST).write_text(manifest)
    if not is_owned:
        (saved / OWNER).unlink()
        (saved / "50.orbax-checkpoint-tmp").mkdir()
    before = names(saved)
    for _ in range(2):
        with pytest.raises(ConfigError, match="each checkpoint is damaged or was written by ano"):
            opened(saved)
    assert names(saved) == before


def compared(monkeypatch: pytest.MonkeyPatch, directory: Path, process: int) -> str:
    """Open a checkpoint directory as process ``process``.

    Returns the text that this process passes to mesh.check_equal, which requires the same text from
    all processes.
    """
    texts = []
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_index", lambda: process)
        patch.setattr(mesh, "from_process_0", lambda _: NONE)
        patch.setattr(mesh, "check_equal", lambda text, _: texts.append(text))
        opened(directory)
    return texts[0]


def test_a_process_with_an_unshared_directory_differs_from_process_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint_module, "SHARED_SECONDS", 0)
    first = compared(monkeypatch, tmp_path / "shared", 0)
    assert compared(monkeypatch, tmp_path / "shared", 1) == first
    assert compared(monkeypatch, tmp_path / "own", 1) != first


def test_a_process_waits_until_it_sees_the_file_of_process_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = compared(monkeypatch, tmp_path, 0)
    (tmp_path / OWNER).rename(tmp_path / "late")
    monkeypatch.setattr(
        checkpoint_module.time, "sleep", lambda _: (tmp_path / "late").rename(tmp_path / OWNER)
    )
    assert compared(monkeypatch, tmp_path, 1) == first


@pytest.mark.parametrize(
    ("processes", "separate"),
    [
        ([[0], [1]], True),
        ([[0, 1], [2, 3]], True),
        ([[0, 1]], False),
        ([[0], [0], [1], [1]], False),
    ],
)
def test_copies_are_separate_if_no_process_has_parts_of_two_copies(
    processes: list[list[int]], separate: bool
):
    devices = [[SimpleNamespace(process_index=i) for i in row] for row in processes]
    assert has_separate_copies(np.array(devices)) == separate


@pytest.fixture
def gs(bucket: dict[str, str]) -> Any:
    """The file system of the emulated bucket, for this process."""
    return open_filesystem(f"gs://{NAME}")[0]


def test_one_process_can_read_checkpoints_from_a_bucket(
    finished: Path, finished_config: Config, gs: Any
):
    gs.put(str(finished / "checkpoints"), f"{NAME}/copy", recursive=True)
    run_contract = Contract("copy", finished, f"gs://{NAME}/copy")
    restored = restored_here(finished_config, run_contract)
    original = restored_here(
        finished_config, replace(run_contract, checkpoints=finished / "checkpoints")
    )
    assert all((restored[name] == original[name]).all() for name in original)


def test_the_write_check_leaves_no_object_in_a_bucket(gs: Any, tmp_path: Path):
    check_writable(Contract("r", tmp_path, f"gs://{NAME}/tried"))
    assert gs.find(f"{NAME}/tried") == []
    with pytest.raises(ConfigError, match=r"^gs://nowhere/x: cannot be written: "):
        check_writable(Contract("r", tmp_path, "gs://nowhere/x"))


@pytest.mark.parametrize(
    ("optimizer", "difference"),
    [
        ({"name": "muon"}, r"optimizer\.name is adamw there, but muon in"),
        ({"frozen": ["l_q_dhe"]}, r"optimizer\.frozen is \[\] there, but \['l_q_dhe'\] in"),
    ],
)
def test_a_checkpoint_of_another_optimizer_is_refused(
    make_config: Callable[..., Config],
    finished: Path,
    tmp_path: Path,
    optimizer: dict[str, Any],
    difference: str,
):
    run_contract = Contract("r", tmp_path, finished / "checkpoints")
    with pytest.raises(ConfigError, match=difference):
        restored_here(make_config(optimizer=optimizer), run_contract)


def test_a_checkpoint_with_another_layout_of_the_parameters_is_refused(
    finished_config: Config, saved: Path
):
    manifest = saved / "40" / MANIFEST
    content = json.loads(manifest.read_text())
    content["of"]["parameters"] = "version 1"
    manifest.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"parameters is version 1 there.*or another run name$"):
        restored_here(finished_config, Contract("r", saved.parent, saved))


def test_an_option_that_a_checkpoint_does_not_have_has_its_default(
    finished_config: Config, make_config: Callable[..., Config], saved: Path, tmp_path: Path
):
    manifest = saved / "40" / MANIFEST
    content = json.loads(manifest.read_text())
    del content["of"]["model"]["attention_bias"], content["of"]["optimizer"]["frozen"]
    manifest.write_text(json.dumps(content))
    run_contract = Contract("r", tmp_path, saved)
    assert restored_here(finished_config, run_contract)
    with pytest.raises(ConfigError, match=r"attention_bias is True there, but False in"):
        restored_here(make_config(model={"attention_bias": False}), run_contract)


def test_a_changed_interval_removes_no_regular_checkpoint(
    make_config: Callable[..., Config], saved: Path
):
    cfg = make_config(steps=45, checkpoint={"every": 15, "keep": None}, sample={"length": 0})
    assert train_here(cfg, saved.parent) == contract.DONE
    assert names(saved) == SAVED_STEPS | {"45"}


@pytest.mark.parametrize("step", ["", "40"])
def test_the_directory_of_another_run_is_refused_and_stays(saved: Path, step: str):
    for path in SAVED_STEPS - {step}:
        shutil.rmtree(saved / path)
    owner = json.loads((saved / OWNER).read_text())
    assert owner["run"] == "alone"
    (saved / OWNER).write_text(json.dumps(owner | {"run": "other"}))
    (saved / "50.orbax-checkpoint-tmp").mkdir()
    before = names(saved)
    with pytest.raises(
        ConfigError, match=r"of the run other, not of alone\. Use another directory"
    ):
        opened(saved)
    assert names(saved) == before


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_damaged_run_json_is_ignored(saved: Path, text: str):
    (saved / OWNER).write_text(text)
    assert opened(saved).latest == 40


def test_reading_parameters_loads_no_optimizer_state(
    finished: Path, finished_config: Config, monkeypatch: pytest.MonkeyPatch
):
    loaded = []
    load = checkpoint_module.ocp.load
    monkeypatch.setattr(
        checkpoint_module.ocp, "load", lambda path, state: loaded.append(state) or load(path, state)
    )
    run_contract = Contract("alone", finished, finished / "checkpoints")
    params = restored_here(finished_config, run_contract)
    assert [set(state) for state in loaded] == [{"params"}]
    assert params.keys() == loaded[0]["params"].keys()


def test_the_identity_ignores_dropout_and_adapter_options_without_adapters(
    finished_config: Config, finished: Path
):
    model = replace(finished_config.model, dropout=0.1)
    lora = LoraConfig(alpha=32.0, targets=("l_q_dhe",))
    cfg = replace(finished_config, model=model, lora=lora)
    corpus = Corpus(prepare_all(cfg.data), cfg)
    run_contract = Contract("alone", finished, finished / "checkpoints")
    assert restored_here(cfg, run_contract)
    assert (
        identity(replace(cfg, lora=LoraConfig(rank=4)), corpus.fingerprint)["lora"]["alpha"] == 16.0
    )
