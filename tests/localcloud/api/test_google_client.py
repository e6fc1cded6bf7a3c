"""Google's Python client, built from the discovery document, against the local cloud."""

import google_auth_httplib2
import httplib2
import pytest
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.localcloud.api.local_api import NODE, SCOPE, ZONE, LoopbackCredentials, wait_for

HERE = f"projects/local-fleet/locations/{ZONE}"


def service(api, version, name="tpu", path=""):
    credentials = LoopbackCredentials.from_service_account_file(
        api.credentials_file, scopes=[SCOPE]
    )
    http = google_auth_httplib2.AuthorizedHttp(
        credentials, http=httplib2.Http(proxy_info=None, timeout=20)
    )
    return build(
        name,
        version,
        http=http,
        static_discovery=True,
        client_options={"api_endpoint": f"{api.endpoint}{path}"},
    )


@pytest.fixture
def tpu(local_api):
    return service(local_api, "v2").projects().locations()


def done(tpu, operation):
    request = tpu.operations().get(name=operation["name"])
    return wait_for(request.execute, lambda now: now["done"])


def test_googles_client_creates_lists_changes_and_deletes_nodes(tpu):
    small = {**NODE, "acceleratorType": "v4-8"}
    for name in ("a", "b", "c"):
        done(tpu, tpu.nodes().create(parent=HERE, nodeId=name, body=small).execute())
    tpu.nodes().patch(
        name=f"{HERE}/nodes/a", body={"labels": {"x": "y"}}, updateMask="labels"
    ).execute()
    done(tpu, tpu.nodes().stop(name=f"{HERE}/nodes/b", body={}).execute())
    done(tpu, tpu.nodes().delete(name=f"{HERE}/nodes/c").execute())

    listed, request = [], tpu.nodes().list(parent="projects/local-fleet/locations/-", pageSize=1)
    while request is not None:
        answer = request.execute()
        listed += answer.get("nodes", [])
        request = tpu.nodes().list_next(request, answer)

    assert [(node["name"][-1], node["state"]) for node in listed] == [
        ("a", "READY"),
        ("b", "STOPPED"),
    ]
    assert listed[0]["labels"] == {"x": "y"}


def test_googles_client_gets_an_errors_reason(tpu):
    with pytest.raises(HttpError) as refusal:
        tpu.nodes().get(name=f"{HERE}/nodes/none").execute()

    assert refusal.value.status_code == 404
    assert f"{HERE}/nodes/none" in refusal.value.reason
