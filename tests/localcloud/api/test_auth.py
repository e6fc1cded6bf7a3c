"""Authentication: google-auth's tokens are accepted, everything else gets Google's 401."""

import json
import stat
import time
from urllib.parse import urlencode

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

from localcloud.api.database import Database
from localcloud.api.errors import ApiError
from localcloud.api.oauth import Accounts
from tests.localcloud.api.local_api import ZONE

NODES = f"/v2/projects/local-fleet/locations/{ZONE}/nodes"
DISKS = f"/compute/v1/projects/local-fleet/zones/{ZONE}/disks"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def account(api):
    return json.loads(api.credentials_file.read_text())


def claims(api, **changes):
    content, now = account(api), int(time.time())
    base = {
        "iss": content["client_email"],
        "aud": content["token_uri"],
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "iat": now,
        "exp": now + 3600,
    }
    return {**base, **changes}


def signed(api, **changes):
    signer = crypt.RSASigner.from_service_account_info(account(api))
    return jwt.encode(signer, claims(api, **changes)).decode()


def ask_token(api, assertion, grant_type=GRANT):
    form = urlencode({"grant_type": grant_type, "assertion": assertion})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return requests.post(f"{api.endpoint}/token", data=form, headers=headers, timeout=20)


def with_token(api, token, path=NODES):
    headers = {"Authorization": f"Bearer {token}"}
    return requests.get(api.endpoint + path, headers=headers, timeout=20)


def test_the_service_account_file_has_googles_fields_and_mode_0600(shared_api):
    content = account(shared_api)

    assert content["type"] == "service_account"
    assert content["project_id"] == "local-fleet"
    assert content["token_uri"] == f"{shared_api.endpoint}/token"
    assert stat.S_IMODE(shared_api.credentials_file.stat().st_mode) == 0o600


def test_an_assertion_for_the_token_uri_of_the_key_file_gets_a_token_for_an_hour(shared_api):
    answer = ask_token(shared_api, signed(shared_api))

    assert answer.status_code == 200
    assert answer.json()["expires_in"] == 3600
    assert answer.json()["token_type"] == "Bearer"
    assert with_token(shared_api, answer.json()["access_token"]).status_code == 200


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"aud": "https://example.org/token"}, "invalid_grant"),
        ({"iss": "somebody@local-fleet.iam.gserviceaccount.com"}, "invalid_grant"),
        ({"iat": int(time.time()) - 7300, "exp": int(time.time()) - 3700}, "invalid_grant"),
        ({"iat": int(time.time()) + 1000, "exp": int(time.time()) + 2000}, "invalid_grant"),
        ({"exp": int(time.time()) + 90_000}, "invalid_grant"),
        ({"exp": "soon"}, "invalid_grant"),
        ({"scope": ""}, "invalid_scope"),
    ],
    ids=["audience", "issuer", "expired", "future", "too long", "no number", "no scope"],
)
def test_an_assertion_with_wrong_claims_is_refused(shared_api, changes, error):
    answer = ask_token(shared_api, signed(shared_api, **changes))

    assert (answer.status_code, answer.json()["error"]) == (400, error)


def test_an_assertion_signed_with_another_key_is_refused(shared_api):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    forged = jwt.encode(crypt.RSASigner.from_string(pem), claims(shared_api)).decode()

    answer = ask_token(shared_api, forged)

    assert answer.status_code == 400
    assert "signature" in answer.json()["error_description"]


@pytest.mark.parametrize("assertion", ["", "a.b", "a.b.c", "ä.ö.ü", "W10.W10.W10"])
def test_an_assertion_that_is_not_a_jwt_is_refused(shared_api, assertion):
    assert ask_token(shared_api, assertion).json()["error"] == "invalid_grant"


def test_another_grant_type_is_refused(shared_api):
    answer = ask_token(shared_api, signed(shared_api), grant_type="password")

    assert answer.json()["error"] == "unsupported_grant_type"


@pytest.mark.parametrize(
    ("path", "header", "reason"),
    [
        (NODES, None, "CREDENTIALS_MISSING"),
        (NODES, "Basic YTpi", "CREDENTIALS_MISSING"),
        (NODES, "Bearer", "CREDENTIALS_MISSING"),
        (NODES, "Bearer nonsense", "ACCESS_TOKEN_EXPIRED"),
        ("/_localcloud/status", "Bearer a.b.c", "ACCESS_TOKEN_EXPIRED"),
        ("/nowhere", None, "CREDENTIALS_MISSING"),
    ],
)
def test_every_path_answers_401_without_a_valid_token(shared_api, path, header, reason):
    headers = {"Authorization": header} if header else {}

    answer = requests.get(shared_api.endpoint + path, headers=headers, timeout=20)

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (401, "UNAUTHENTICATED")
    assert error["details"][0]["reason"] == reason


@pytest.mark.parametrize(
    ("path", "audience", "code"),
    [
        (NODES, "https://tpu.googleapis.com/", 200),
        (DISKS, "https://compute.googleapis.com/", 200),
        (NODES, "https://compute.googleapis.com/", 401),
        (DISKS, "https://tpu.googleapis.com/", 401),
        (NODES, "https://storage.googleapis.com/", 401),
    ],
)
def test_a_self_signed_jwt_is_accepted_for_its_audience(shared_api, path, audience, code):
    token = signed(shared_api, aud=audience, scope="")

    assert with_token(shared_api, token, path).status_code == code


def test_a_token_expires_after_an_hour(tmp_path, local_api):
    seconds = [time.time()]
    database = Database(tmp_path / "other.sqlite")
    accounts = Accounts(database, now=lambda: seconds[0])
    path, uri = tmp_path / "account.json", "http://127.0.0.1:1/token"
    accounts.write_file(path, uri)
    signer = crypt.RSASigner.from_service_account_file(str(path))
    issuer = json.loads(path.read_text())["client_email"]
    assertion = jwt.encode(signer, claims(local_api, iss=issuer, aud=uri)).decode()
    token = accounts.grant(assertion, uri)

    seconds[0] += 3590
    accounts.check(f"Bearer {token}")
    seconds[0] += 20
    with pytest.raises(ApiError) as refusal:
        accounts.check(f"Bearer {token}")

    database.close()
    assert refusal.value.code == 401


def test_a_restart_keeps_the_key_and_tokens(local_api):
    token = ask_token(local_api, signed(local_api)).json()["access_token"]
    before = local_api.credentials_file.read_text()
    local_api.halt()

    local_api.boot()

    assert local_api.credentials_file.read_text() == before
    assert with_token(local_api, token).status_code == 200


def test_a_damaged_key_file_is_recreated_and_old_tokens_become_invalid(local_api):
    token = ask_token(local_api, signed(local_api)).json()["access_token"]
    local_api.halt()
    local_api.credentials_file.write_text("{}")

    local_api.boot()

    assert with_token(local_api, token).status_code == 401
    assert local_api.call("GET", NODES).status_code == 200


def test_tokens_assertions_and_queries_are_not_logged(local_api):
    assertion = signed(local_api)
    token = ask_token(local_api, assertion).json()["access_token"]
    with_token(local_api, token)
    requests.get(f"{local_api.endpoint}{NODES}?access_token={token}", timeout=20)
    private = account(local_api)["private_key"].splitlines()[1]
    local_api.halt()

    stored = b"".join(
        path.read_bytes()
        for path in local_api.state.iterdir()
        if path != local_api.credentials_file
    )
    local_api.boot()

    assert token.encode() not in stored
    assert assertion.encode() not in stored
    assert private.encode() not in stored
