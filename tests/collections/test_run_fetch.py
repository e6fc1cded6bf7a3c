"""Copying checkpoints from a bucket to the controller, with a real GCS emulator."""

import base64
import hashlib
import json
import subprocess
import sys
import zlib
from dataclasses import replace

import pytest
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import download, errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.checkpoint_download import fetch
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import (
    Bucket,
    StoredObject,
)
from ansible_collections.tpufleet.core.plugins.module_utils.worker.checkpoint_sound import (
    Layout,
    newest_finished,
)

from harness.emulated_storage import put_object
from harness.playbooks import environment_of, error_of, output_of
from harness.stored_output import QUICK
from tests.collections.local_client import store_record
from tests.collections.role_templates import evaluated, loaded
from tests.collections.running_modules import run_module


def saved(files):
    """Return the files of a checkpoint and their manifest, as the trainer writes it."""
    sums = {name: (len(content), zlib.crc32(content)) for name, content in files.items()}
    return {**files, "manifest.json": json.dumps({"of": {}, "files": sums}).encode()}


GOOD = saved({"params/0": b"weights", "empty": b"", "_METADATA": b"{}"})
CUT = {**GOOD, "params/0": b"weigh"}
CHANGED = {**GOOD, "_METADATA": b"[]"}
UNFINISHED = {"params/0": b"weights"}


WEIGHTS = {"default/manifest.ocdbt": b"weights", "default/d/abc_7": b"more", "params/0": b"1"}
COMMITTED = {**WEIGHTS, "commit_success.txt": b"", "_CHECKPOINT_METADATA": b"{}"}


def of(**steps):
    return {
        f"{step[1:]}/{name}": content
        for step, files in steps.items()
        for name, content in files.items()
    }


OWN = Layout(is_own=True, in_bucket=True)
ORBAX = Layout(is_own=False, in_bucket=True)


def newest_and_faults(files, layout=OWN):
    sizes = {name: len(content) for name, content in files.items()}
    return newest_finished(layout, sizes, files.__getitem__)


def test_the_newest_sound_checkpoint_is_found_and_faults_of_newer_ones_are_named():
    unsound = {"s20": CUT, "s30": CHANGED, "s40": UNFINISHED, "s50": saved({})}

    step, faults = newest_and_faults(of(s9=GOOD, s10=GOOD, **unsound))

    assert step == "10"
    assert [line.partition(":")[0] for line in faults] == ["50", "40", "30", "20"]
    assert "manifest.json lists no files" in faults[0]
    assert "no manifest.json" in faults[1]
    assert "_METADATA does not match its checksum" in faults[2]
    assert "params/0 has 5 bytes instead of 7" in faults[3]


def put(bucket, files):
    for name, content in files.items():
        put_object(bucket.address, bucket.bucket_url.full_name(name), content)


def md5_of(content):
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def files_in(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_only_the_newest_sound_checkpoint_is_fetched_and_only_once(bucket, tmp_path):
    put(bucket, of(s10=GOOD, s20=GOOD, s30=CUT))

    first = fetch(bucket, tmp_path, OWN, newest=True, check=False)

    assert files_in(tmp_path) == of(s20=GOOD)
    assert (first["changed"], len(first["passed_over"])) == (True, 1)
    assert not fetch(bucket, tmp_path, OWN, newest=True, check=False)["changed"]


def test_all_checkpoints_are_fetched_unchanged_and_no_other_files(bucket, tmp_path):
    put(bucket, {"compiled/jit_update-cache": b"a program", "corpus/text/train.bin": b"tokens"})
    empty = fetch(bucket, tmp_path, OWN, newest=False, check=False)
    assert "there are no checkpoints" in empty["missing"]
    put(bucket, of(s10=GOOD, s20=CUT))
    fetch(bucket, tmp_path, OWN, newest=False, check=False)

    assert files_in(tmp_path) == of(s10=GOOD, s20=CUT)


def test_check_mode_lists_files_and_fetches_none(bucket, tmp_path):
    put(bucket, of(s10=GOOD))

    assert fetch(bucket, tmp_path, OWN, newest=True, check=True)["files"] == sorted(of(s10=GOOD))
    assert files_in(tmp_path) == {}


def test_a_file_is_downloaded_in_several_pieces(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "CHUNK_BYTES", 3)
    put(bucket, {"10/params/0": b"0123456789"})
    fetch(bucket, tmp_path, OWN, newest=False, check=False)

    assert files_in(tmp_path) == {"10/params/0": b"0123456789"}


class Unsteady(Bucket):
    """A bucket that changes during a fetch: it calls ``event`` before each download."""

    event = staticmethod(lambda name: None)

    def content(self, name, *arguments, **options):
        self.event(name)
        return super().content(name, *arguments, **options)


def unsteady(bucket, event):
    unsteady_bucket = Unsteady(bucket.url, address=bucket.address, retry=QUICK)
    unsteady_bucket.event = event
    return unsteady_bucket


def replace_object(bucket, name):
    put(bucket, {name: b"new"})


def refuse(_bucket, name):
    raise errors.Forbidden(f"can't read {name}: storage.objects.get denied")


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (replace_object, "it was replaced or deleted during the download"),
        (refuse, "it can't be read"),
    ],
)
def test_an_object_that_is_replaced_or_may_not_be_read_is_skipped_and_named(
    bucket, tmp_path, event, reason
):
    put(bucket, {"10/a": b"old", "10/b": b"fine"})
    changing = unsteady(bucket, lambda name: name == "10/a" and event(bucket, name))

    result = fetch(changing, tmp_path, OWN, newest=False, check=False)

    assert result["unreadable"][0].startswith(f"10/a: {reason}")
    assert files_in(tmp_path) == {"10/b": b"fine"}


def test_a_file_of_the_same_length_with_other_content_is_downloaded_again(bucket, tmp_path):
    put(bucket, {"10/a": b"weights"})
    (tmp_path / "10").mkdir()
    (tmp_path / "10/a").write_bytes(b"WEIGHTS")

    result = fetch(bucket, tmp_path, OWN, newest=False, check=False)

    assert (result["files"], files_in(tmp_path)) == (["10/a"], {"10/a": b"weights"})


def listed_as(bucket, **fields):
    """Replace these fields of each object in the bucket's listing; return the bucket."""
    listed = [replace(stored, **fields) for stored in bucket.list()]
    bucket.list = lambda: listed
    return bucket


@pytest.mark.parametrize("fields", [{"md5": "AAAA"}, {"md5": "", "crc32c": "AAAA"}, {"size": 2}])
def test_content_that_does_not_match_its_checksum_is_not_kept(bucket, tmp_path, fields):
    put(bucket, {"10/a": b"weights"})

    result = fetch(listed_as(bucket, **fields), tmp_path, OWN, newest=False, check=False)

    assert "10/a: its content does not match its checksum" in result["unreadable"][0]
    assert files_in(tmp_path) == {}


def test_an_object_of_several_parts_is_verified_by_its_crc32c(bucket, tmp_path):
    put(bucket, {"10/a": b"weights"})
    composite = listed_as(bucket, md5="")  # the API gives no MD5 of a composite object

    assert fetch(composite, tmp_path, OWN, newest=False, check=False)["changed"]
    assert not fetch(composite, tmp_path, OWN, newest=False, check=False)["changed"]
    assert files_in(tmp_path) == {"10/a": b"weights"}


@pytest.mark.parametrize(("layout", "files"), [(OWN, GOOD), (ORBAX, COMMITTED)])
def test_a_checkpoint_with_an_unreadable_object_is_passed_over_for_an_older_one(
    bucket, tmp_path, layout, files
):
    put(bucket, of(s10=files, s20=files))
    closed = unsteady(bucket, lambda name: name == "20/params/0" and refuse(bucket, name))

    result = fetch(closed, tmp_path, layout, newest=True, check=False)

    assert files_in(tmp_path) == of(s10=files)
    assert result["passed_over"][0].startswith("20: params/0")


def listing(bucket, files):
    """Make the bucket list objects with these names, even invalid ones; return the bucket."""
    stored = [StoredObject(name, len(files[name]), 1, md5_of(files[name])) for name in files]
    bucket.list = lambda: stored
    bucket.content = lambda name, *_words, **_options: files[name]
    return bucket


def test_an_object_name_that_leads_out_of_the_folder_is_skipped_and_named(bucket, tmp_path):
    names = {"10/../../x": b"1", "10//y": b"2", "10/": b"", "/etc/x": b"3", "10/z": b"4"}

    result = fetch(listing(bucket, names), tmp_path / "to", OWN, newest=False, check=False)

    skipped = [line.partition(":")[0] for line in result["unreadable"]]
    assert skipped == ["/etc/x", "10/../../x", "10//y"]
    assert files_in(tmp_path) == {"to/10/z": b"4"}


def test_an_object_whose_name_is_also_a_directory_is_skipped_and_named(bucket, tmp_path):
    names = {"10/a": b"1", "10/a/b": b"2", "10/c": b"3"}

    result = fetch(listing(bucket, names), tmp_path, OWN, newest=False, check=False)

    assert len(result["unreadable"]) == 1
    assert files_in(tmp_path)["10/c"] == b"3"


def test_the_newest_finished_orbax_checkpoint_is_found_in_a_bucket():
    files = of(s9=COMMITTED, s100=COMMITTED, s200=WEIGHTS)
    files["300.orbax-checkpoint-tmp-17/commit_success.txt"] = b""
    files["log_400"] = b"a file, and no checkpoint"

    path, faults = newest_and_faults(files, ORBAX)

    assert path == "100"
    assert faults == ["200: it has no commit_success.txt, so its save was interrupted"]


@pytest.mark.parametrize(
    ("layout", "files", "newest"),
    [
        (OWN, {"20.damaged/manifest.json": b"{}", "metrics": b""}, ""),
        (
            Layout(is_own=False),
            of(s9=WEIGHTS, s100=WEIGHTS) | {"300.orbax-checkpoint-tmp-17/default/d": b""},
            "100",
        ),
        (ORBAX, {f"ckpt_{step}/{name}": b"" for step in (8, 16) for name in COMMITTED}, "ckpt_16"),
    ],
    ids=["set aside", "Orbax in a directory", "a prefix before the step"],
)
def test_the_newest_checkpoint_is_found_in_each_layout(layout, files, newest):
    assert newest_and_faults(files, layout) == (newest, [])


@pytest.mark.parametrize(
    ("pattern", "newest"),
    [
        ("*/step-*", "gpt2/step-100"),
        ("gpt2/step-9", "gpt2/step-9"),
        ("gpt2/model_*.pt", "gpt2/model_20.pt"),
        ("other/*", ""),
    ],
)
def test_a_pattern_selects_the_checkpoints_of_any_trainer(pattern, newest):
    directories = ["gpt2/step-9/metadata.json", "gpt2/step-100/metadata.json"]
    files = [*directories, "gpt2/model_20.pt", "gpt2/model_3.pt", "7/commit_success.txt"]
    layout = Layout(is_own=True, in_bucket=True, pattern=pattern)

    assert newest_and_faults(dict.fromkeys(files, b""), layout)[0] == newest


def test_the_error_about_missing_checkpoints_names_the_option_for_other_trainers(bucket, tmp_path):
    put(bucket, {"gpt2/step-9/metadata.json": b"{}"})

    result = fetch(bucket, tmp_path, ORBAX, newest=True, check=False)

    assert "found only gpt2" in result["missing"]
    assert "-e checkpoint_pattern='*/step-*'" in result["missing"]


def test_an_orbax_checkpoint_that_orbax_itself_wrote_is_found(tmp_path):
    save = (
        "import sys, numpy as np; from orbax.checkpoint import v1 as ocp;"
        "saver = ocp.training.Checkpointer(sys.argv[1]);"
        "[saver.save_pytree(step, {'w': np.ones(3)}) for step in (1, 20)]; saver.close()"
    )
    command = [sys.executable, "-c", save, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    sizes = {name: len(content) for name, content in files_in(tmp_path).items()}

    assert newest_finished(Layout(is_own=False), sizes, lambda _: b"") == ("20", [])
    assert newest_finished(ORBAX, sizes, lambda _: b"") == ("20", [])


def test_if_the_bucket_is_unavailable_the_module_succeeds_and_returns_the_error(tmp_path):
    api = {"project": "local-fleet", "endpoint": "http://127.0.0.1:1"}
    options = {"location": "gs://b23/a", "command": ["a"], "to": str(tmp_path)}

    result = run_module("run_fetch", api=api, **options)

    assert "has no Cloud Storage" in result["missing"]
    assert not result["changed"]


@pytest.fixture
def fetch_arguments(emulator, local_api, tmp_path):
    """The arguments of a playbook that copies the newest checkpoint of the run mine to tmp_path."""
    (local_api.state / "bucket-endpoint").write_text(emulator)
    arguments = ("-e", "run=mine", "-e", "checkpoints=newest", "-e", f"to={tmp_path}")
    return environment_of(local_api), "playbooks/fetch.yml", *arguments


def test_fetch_copies_checkpoints_from_the_bucket_when_no_tpu_is_left(
    fetch_arguments, emulator, local_api, tmp_path
):
    put(Bucket("gs://fleet/played/mine", address=emulator), of(s10=GOOD))
    store_record(local_api, checkpoints="gs://fleet/played/mine")

    output_of(*fetch_arguments)

    assert "10/manifest.json" in files_in(tmp_path / "checkpoints")


def test_fetch_fails_at_its_end_if_the_bucket_has_no_finished_checkpoint(
    fetch_arguments, emulator, local_api
):
    put(Bucket("gs://fleet/cut/mine", address=emulator), of(s10=WEIGHTS))
    store_record(local_api, checkpoints="gs://fleet/cut/mine", command=["python", "mine.py"])

    output = error_of(*fetch_arguments)

    assert "no finished checkpoint (10: it has no commit_success.txt" in output
    assert output.index("Copy an archive of the run") < output.index("no finished checkpoint")


@pytest.mark.parametrize(("worker", "checkpoints"), [(0, "newest"), (1, "none")])
def test_only_the_archive_of_worker_0_has_checkpoints(worker, checkpoints):
    [pack] = [
        task["tpufleet.core.run_pack"]
        for play in loaded("playbooks/fetch.yml")
        for task in play.get("tasks", ())
        if "tpufleet.core.run_pack" in task
    ]
    variables = {"fetch_which": "newest", "tpu_worker_id": worker, "checkpoint_pattern": "*/s-*"}

    assert evaluated(pack["checkpoints"], variables) == checkpoints
    assert evaluated(pack["checkpoint_pattern"], variables) == "*/s-*"
