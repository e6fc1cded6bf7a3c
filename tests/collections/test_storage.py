"""Objects in a bucket, changed only by compare-and-swap; tested with a real GCS emulator."""

import gzip
import itertools
from types import SimpleNamespace

import pytest
import requests
from ansible_collections.tpufleet.core.plugins.module_utils.cloud import errors
from ansible_collections.tpufleet.core.plugins.module_utils.cloud.storage import (
    ABSENT,
    Bucket,
    BucketUrl,
)

from harness.scripted_api import Drop, Reply, error
from harness.stored_output import QUICK
from tests.collections.error_lines.bad import nowhere


def test_a_written_object_reads_back(bucket):
    generation = bucket.write("a.json", {"step": 1, "word": "ä"}, ABSENT)

    assert bucket.read("a.json") == ({"step": 1, "word": "ä"}, generation)
    assert bucket.names() == ["a.json"]


def test_a_missing_object_is_absent_and_a_missing_bucket_is_an_error(bucket, emulator):
    assert bucket.read("a.json") == ({}, ABSENT)
    missing = Bucket("gs://nowhere/x", address=emulator, retry=QUICK)
    with pytest.raises(errors.NotFound, match="nowhere"):
        missing.write("a.json", {}, ABSENT)
    with pytest.raises(errors.NotFound, match="nowhere"):
        missing.read("a.json")
    with pytest.raises(errors.NotFound, match=r"can't write gs://nowhere/x/a\.html"):
        missing.upload("a.html", b"", PAGE)


#: Google's messages for a 404: those documented for the JSON API, and those of real servers.
NO_OBJECT = ["No such object: {bucket}/{name}", "Not Found"]
NO_BUCKET = ["The specified bucket does not exist.", "Not Found"]
PLACES = ["gs://fleet/state", "gs://my-bucket", "gs://bucket/the-bucket/runs", "gs://b.example/x"]


def google_storage(scripted, url, *, message, bucket_exists, may_list=True):
    """Make the server answer as Google does for an empty or missing bucket; return its client."""
    bucket_url = BucketUrl.parse(url)
    not_found = error(
        404, message.format(bucket=bucket_url.bucket, name=bucket_url.full_name("a.json"))
    )
    listed = Reply({"kind": "storage#objects"}) if bucket_exists else not_found
    if bucket_exists and not may_list:
        listed = not_found = error(403, "Permission 'storage.objects.list' denied (or no bucket)")

    def answer(asked):
        return listed if asked.path == f"/storage/v1/b/{bucket_url.bucket}/o" else not_found

    scripted.handler = answer
    return Bucket(url, address=scripted.endpoint, retry=QUICK)


@pytest.mark.parametrize("url", PLACES)
@pytest.mark.parametrize("message", NO_OBJECT)
def test_a_missing_object_is_absent_for_every_message_of_google(scripted, url, message):
    bucket = google_storage(scripted, url, message=message, bucket_exists=True)

    assert bucket.read("a.json") == ({}, ABSENT)


@pytest.mark.parametrize("url", PLACES)
@pytest.mark.parametrize("message", NO_BUCKET)
def test_a_missing_bucket_is_an_error_and_never_an_absent_object(scripted, url, message):
    bucket = google_storage(scripted, url, message=message, bucket_exists=False)

    with pytest.raises(errors.NotFound, match=f"can't read {url}/a.json"):
        bucket.read("a.json")


def test_an_object_without_read_permission_is_an_error_and_never_absent(scripted):
    bucket = google_storage(
        scripted, "gs://fleet/x", message="", bucket_exists=True, may_list=False
    )

    with pytest.raises(errors.Forbidden):
        bucket.read("a.json")


def test_an_object_that_is_created_during_a_read_is_returned(scripted):
    objects_path = "/storage/v1/b/fleet/o"
    scripted.script = [
        error(404, "Not Found"),
        Reply({"items": [{"name": "x/a.json"}]}),
        Reply({"step": 1}, headers=(("x-goog-generation", "7"),)),
    ]
    bucket = Bucket("gs://fleet/x", address=scripted.endpoint, retry=QUICK)

    assert bucket.read("a.json") == ({"step": 1}, 7)
    assert [request.path for request in scripted.asked] == [
        f"{objects_path}/x%2Fa.json",
        objects_path,
        f"{objects_path}/x%2Fa.json",
    ]


def test_an_object_whose_name_only_starts_with_the_given_name_is_not_read(bucket):
    bucket.write("a.json.old", {"who": 1}, ABSENT)

    assert bucket.read("a.json") == ({}, ABSENT)


def test_an_object_that_was_created_or_changed_meanwhile_is_not_overwritten(bucket):
    old = bucket.write("a.json", {"who": 1}, ABSENT)
    bucket.write("a.json", {"who": 2}, old)

    for generation in (ABSENT, old):
        with pytest.raises(errors.Conflict, match=r"a\.json: it has changed since it was read"):
            bucket.write("a.json", {"who": 3}, generation)

    assert bucket.read("a.json")[0] == {"who": 2}


def test_a_repeated_write_of_the_same_content_succeeds(bucket):
    old = bucket.write("a.json", {"who": 1}, ABSENT)
    generation = bucket.write("a.json", {"who": 2}, old)

    assert bucket.write("a.json", {"who": 2}, old) == generation


PAGE = {"contentType": "text/html", "contentEncoding": "gzip", "cacheControl": "no-cache"}


def test_a_removal_whose_answer_is_lost_succeeds(scripted):
    scripted.script = [Drop(), error(404, "No such object: bucket/a.json")]
    Bucket("gs://bucket", address=scripted.endpoint, retry=QUICK).remove("a.json", 1)
    assert scripted.methods() == ["DELETE", "DELETE"]


def test_an_upload_replaces_the_object_and_its_headers_are_served(bucket):
    for text in ("<p>old</p>", "<p>new ä \0 --\r\n--</p>"):
        bucket.upload("pages/a b.html", gzip.compress(text.encode()), PAGE)

        served = requests.get(bucket.browser_url("pages/a b.html"), timeout=10)
        assert served.content.decode() == text
        assert served.headers["Content-Type"] == "text/html"
        assert served.headers["Cache-Control"] == "no-cache"


def test_the_browser_url_of_an_object_is_where_google_asks_for_a_login():
    url = Bucket("gs://fleet/pages").browser_url("a b.html")
    assert url == "https://storage.cloud.google.com/fleet/pages/a%20b.html"


def test_an_unreachable_bucket_is_named():
    bucket = Bucket("gs://fleet/x", address=nowhere(), retry=QUICK)
    with pytest.raises(errors.NoAnswer, match=r"gs://fleet/x/a\.json: no answer from"):
        bucket.read("a.json")


@pytest.mark.parametrize("url", ["fleet/x", "gs://", "gs:///x", "s3://fleet"])
def test_an_invalid_bucket_url_is_refused(url):
    with pytest.raises(errors.NotConfigured, match="expected gs://bucket/prefix"):
        BucketUrl.parse(url)


def test_a_slash_at_the_end_of_a_bucket_url_means_nothing():
    assert BucketUrl.parse("gs://fleet/state/") == BucketUrl("fleet", "state")


def test_a_slow_download_is_not_discarded(scripted, monkeypatch):
    ticks = itertools.count(0, 70)  # the clock advances by 70 s each time it is read
    slow = SimpleNamespace(time=lambda: next(ticks))
    monkeypatch.setattr("google.auth.transport.requests.time", slow)
    scripted.handler = lambda _: Reply(b"data")
    assert Bucket("gs://b/x", address=scripted.endpoint, retry=QUICK).content("o") == b"data"
