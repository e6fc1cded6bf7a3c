"""Files that fetch.yml packs for a run, and files that it never packs."""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.tpufleet.core.plugins.module_utils.worker.run import TRAINER, RunError
from ansible_collections.tpufleet.core.plugins.modules import run_pack
from ansible_collections.tpufleet.core.plugins.modules.run_pack import pack
from ansible_collections.tpufleet.core.plugins.plugin_utils.fleet.inventory_groups import (
    workers_of,
    workers_pattern,
)

OPTIONS = {"run": "mine", "bundle": False, "checkpoints": "none", "checkpoint_pattern": ""}
OWN = [*TRAINER, "steps=20"]


@pytest.fixture
def paths(paths, tmp_path):
    (paths.run_dir("mine") / "log").write_text("step 1\n")
    (paths.run_dir("mine") / "metrics.jsonl").write_text("{}\n")
    (paths.unit_dir("mine") / "environment").write_text('WANDB_API_KEY="hunter2"\n')
    stored(tmp_path, "3/arrays")
    launched(paths, OWN)
    return paths


def stored(tmp_path, *names, text="numbers"):
    """Write files with these names and this text to the run's checkpoint directory."""
    for name in names:
        path = tmp_path / "checkpoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def checkpoint_files(names):
    return [name for name in names if "checkpoints" in name]


def launched(paths, command):
    spec = {"checkpoints": str(paths.state.parent / "checkpoints"), "command": command}
    launch = {"spec": spec, "identity": "of-secrets"}
    (paths.unit_dir("mine") / "launch.json").write_text(json.dumps(launch))


def packed(paths, **more):
    """Pack the run; return the names in the archive."""
    return packed_with_result(paths, **more)[0]


def packed_with_result(paths, file=None, **more):
    with tarfile.open(fileobj=file or io.BytesIO(), mode="w") as archive:
        result = pack(OPTIONS | more, paths, archive)
        return archive.getnames(), result


def test_files_of_the_run_are_fetched(paths):
    assert packed(paths) == ["mine/log", "mine/metrics.jsonl", "mine/launch.json"]


def test_a_bundle_describes_the_worker_and_contains_no_secret_or_identity(paths):
    file = io.BytesIO()

    names, _ = packed_with_result(paths, file, bundle=True)

    assert {"mine/unit.txt", "mine/disks.txt", "mine/devices.txt"} <= set(names)
    assert OWN[-1].encode() in file.getvalue()
    assert b"hunter2" not in file.getvalue()
    assert b"of-secrets" not in file.getvalue()


def test_a_run_without_files_is_named_in_the_error(paths):
    with pytest.raises(RunError, match="no files of run other"):
        packed(paths, run="other")


def test_the_workers_of_a_tpu_are_those_that_are_ready():
    groups = {"tpu": ["a-b-w0", "c-w0"], "tpu_a_b": ["a-b-w0", "a-b-w1"]}

    assert workers_of(groups, "a-b") == ["a-b-w0"]
    assert workers_of(groups) == ["a-b-w0", "c-w0"]
    assert (workers_pattern("a-b", groups), workers_pattern("", groups)) == ("tpu:&tpu_a_b", "tpu")


@pytest.mark.parametrize("size", ["1e999", "NaN", "null", "[]"])
def test_only_the_newest_valid_checkpoint_is_packed_on_request(paths, tmp_path, size):
    stored(tmp_path, "3/manifest.json", text='{"files": {"arrays": [7, null]}}')
    stored(tmp_path, "5/manifest.json", text=f'{{"files": {{"arrays": [{size}, null]}}}}')
    stored(tmp_path, "7/arrays")

    sound = ("checkpoints/3/arrays", "checkpoints/3/manifest.json")

    names, result = packed_with_result(paths, checkpoints="newest")

    assert set(checkpoint_files(names)) == {f"mine/{name}" for name in sound}
    assert result["passed_over"] == [
        "7: it has no manifest.json, so its save was interrupted",
        "5: manifest.json is damaged",
    ]


@pytest.mark.parametrize("error", [KeyError("spec"), KeyboardInterrupt()])
def test_a_failure_leaves_no_archive_on_the_worker(tmp_path, monkeypatch, error):
    def pack(*_):
        raise error

    monkeypatch.setattr(run_pack, "pack", pack)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with patch_module_args({"run": "mine"}), pytest.raises(type(error)):
        run_pack.main()

    assert not list(tmp_path.glob("*.tar.gz"))


def test_the_archives_of_the_same_files_are_the_same(paths, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_pack, "WorkerPaths", lambda: paths)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    clock = iter(range(10**9, 2 * 10**9))
    monkeypatch.setattr("time.time", lambda: next(clock))

    def result(*, check):
        arguments = {"run": "mine", "_ansible_check_mode": check}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            run_pack.main()
        return json.loads(capsys.readouterr().out)

    contents = {Path(result(check=False)["path"]).read_bytes() for _ in range(2)}
    predicted = result(check=True)

    assert len(contents) == 1
    assert predicted["checksum"] == hashlib.sha1(contents.pop(), usedforsecurity=False).hexdigest()
    assert not Path(predicted["path"]).exists()


@pytest.mark.parametrize("pattern", ["", "ckpt_*"])
def test_the_log_is_fetched_even_without_a_finished_checkpoint(paths, pattern):
    names, result = packed_with_result(paths, checkpoints="newest", checkpoint_pattern=pattern)

    assert "mine/log" in names
    assert "no finished checkpoint" in result["missing"]


def test_the_newest_checkpoint_of_another_trainer_is_found_by_the_orbax_layout(paths, tmp_path):
    launched(paths, ["python", "my_trainer.py"])
    stored(tmp_path, "20/arrays", "100.orbax-checkpoint-tmp-17/arrays")

    names, result = packed_with_result(paths, checkpoints="newest")

    assert checkpoint_files(names) == ["mine/checkpoints/20/arrays"]
    assert result == {"passed_over": [], "unreadable": [], "missing": ""}


def test_the_newest_checkpoint_of_another_trainer_is_found_by_a_pattern(paths, tmp_path):
    stored(tmp_path, "gpt/step-9/model", "gpt/step-10/model")

    names = packed(paths, checkpoints="newest", checkpoint_pattern="*/step-*")

    assert checkpoint_files(names) == ["mine/checkpoints/gpt/step-10/model"]


def test_a_file_of_a_checkpoint_that_can_t_be_read_is_skipped_and_named(
    paths, tmp_path, monkeypatch
):
    stored(tmp_path, "3/more")
    opened = run_pack.open_file

    def open_file(path):
        if path.name == "arrays":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(run_pack, "open_file", open_file)
    names, result = packed_with_result(paths, checkpoints="all")

    assert "mine/checkpoints/3/more" in names
    assert result["unreadable"] == ["3/arrays: Permission denied"]


def test_a_log_that_is_truncated_while_it_is_packed_ends_with_zeros_and_is_named(
    paths, monkeypatch
):
    log = paths.run_dir("mine") / "log"
    log.write_text("a" * 100_000)
    described = tarfile.TarFile.gettarinfo

    def gettarinfo(archive, arcname, fileobj):
        entry = described(archive, arcname=arcname, fileobj=fileobj)
        if arcname == "mine/log":
            os.truncate(log, 10)
        return entry

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", gettarinfo)
    file = io.BytesIO()
    names, result = packed_with_result(paths, file)

    assert {"mine/log", "mine/metrics.jsonl"} <= set(names)
    assert result["unreadable"] == ["log: the file was truncated while it was read"]
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        assert archive.extractfile("mine/log").read() == b"a" * 10 + bytes(99_990)


def test_a_checkpoint_that_is_deleted_while_it_is_packed_is_left_out(paths, tmp_path, monkeypatch):
    stored(tmp_path, "3/more")
    original = Path.lstat

    def lstat(path):
        if path.name == "arrays":
            path.unlink(missing_ok=True)
        return original(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    names, result = packed_with_result(paths, checkpoints="all")

    assert "mine/checkpoints/3/more" in names
    assert result["unreadable"] == []


def test_without_a_checkpoint_location_only_the_run_is_packed(paths):
    (paths.unit_dir("mine") / "launch.json").write_text("{}")

    assert packed(paths, checkpoints="all") == ["mine/log", "mine/metrics.jsonl"]
