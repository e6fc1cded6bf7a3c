"""OAuth 2 authentication: exchange a service account's signed JWTs for bearer tokens.

The token endpoint accepts the JWT bearer grant (RFC 7523, section 2.1; signatures RS256, RFC 7518)
that google-auth's ``service_account`` credentials send. Google's client libraries can also send a
signed JWT directly as the bearer token, with the API's address as its audience
(https://google.aip.dev/auth/4111).
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt
from google.auth.exceptions import GoogleAuthError

from localcloud.api.catalog import PROJECT_ID
from localcloud.api.database import Database
from localcloud.api.errors import unauthenticated
from localcloud.api.routing import Call, Route

EMAIL = f"fleet@{PROJECT_ID}.iam.gserviceaccount.com"
TOKEN_LIFE = 3600
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
# The audience of the JWTs that google-auth signs, even if the key file has another token_uri.
GOOGLE_AUDIENCE = "https://oauth2.googleapis.com/token"
_CLOCK_SKEW = 60


class GrantError(Exception):
    """Error response of the token endpoint.

    ``code`` and the message are RFC 6749's ``error`` and ``error_description``.
    """

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code


class Accounts:
    """The cloud's service account and its tokens; the database stores no private key."""

    def __init__(self, database: Database, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._now = now

    def write_file(self, path: Path, token_uri: str) -> None:
        """Write the service account's JSON key file (mode 0600).

        ``token_uri`` is the URL of the token endpoint, which the file contains. If the existing
        file has the cloud's current key, that key is reused, so that copies of the file stay valid
        after a restart. Otherwise a new key replaces the old one.
        """
        content = self._read_own_file(path) or self._new_key()
        content["token_uri"] = token_uri
        temporary = path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(temporary, flags, 0o600), "w") as file:
            json.dump(content, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _read_own_file(self, path: Path) -> dict[str, Any] | None:
        try:
            content = json.loads(path.read_text())
            key = serialization.load_pem_private_key(content["private_key"].encode(), None)
            is_own_email = content["client_email"] == EMAIL
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return content if is_own_email and _public_pem(key) == self._public_key(EMAIL) else None

    def _new_key(self) -> dict[str, Any]:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        key_id = secrets.token_hex(20)
        with self._database.transaction():
            self._database.execute("DELETE FROM tokens")
            self._database.execute(
                "INSERT OR REPLACE INTO service_accounts VALUES (?, ?, ?)",
                EMAIL,
                key_id,
                _public_pem(key),
            )
        return {
            "type": "service_account",
            "project_id": PROJECT_ID,
            "private_key_id": key_id,
            "private_key": private.decode(),
            "client_email": EMAIL,
            "client_id": str(secrets.randbits(62)),
            "universe_domain": "googleapis.com",
        }

    def _public_key(self, email: str) -> str | None:
        query = "SELECT public_key FROM service_accounts WHERE email = ?"
        rows = self._database.rows(query, email)
        return rows[0][0] if rows else None

    def grant(self, assertion: str, token_uri: str) -> str:
        """Return a bearer token for a signed JWT; raise GrantError if the JWT is invalid.

        ``assertion`` is the JWT. Its audience must be ``token_uri`` or Google's token endpoint.
        """
        claims = self._verified(assertion)
        if claims.get("aud") not in (token_uri, GOOGLE_AUDIENCE):
            raise GrantError("invalid_grant", f"the assertion's audience is not {token_uri}")
        if not claims.get("scope"):
            raise GrantError("invalid_scope", "the assertion has no scope: add the claim scope")
        token = f"local.{secrets.token_urlsafe(32)}"
        now = int(self._now())
        with self._database.transaction():
            self._database.execute("DELETE FROM tokens WHERE expires <= ?", now)
            expires = now + TOKEN_LIFE
            self._database.execute("INSERT INTO tokens VALUES (?, ?)", _hash(token), expires)
        return token

    def check(self, authorization: str | None, audiences: Collection[str] = ()) -> None:
        """Raise HTTP 401 unless the ``Authorization`` header has a valid bearer token.

        A signed JWT is also accepted as a token if it has a scope or if its audience is one of
        ``audiences``.
        """
        kind, _, token = (authorization or "").strip().partition(" ")
        if kind.lower() != "bearer" or not token:
            raise unauthenticated(
                "CREDENTIALS_MISSING",
                "The request has no OAuth 2 access token: "
                "use credentials from the cloud's service-account.json",
            )
        query = "SELECT 1 FROM tokens WHERE hash = ? AND expires > ?"
        if self._database.rows(query, _hash(token), int(self._now())):
            return
        if token.count(".") == 2 and self._is_signed_token(token, audiences):
            return
        raise unauthenticated(
            "ACCESS_TOKEN_EXPIRED",
            "The request's OAuth 2 access token has expired or was not issued by this cloud",
        )

    def _is_signed_token(self, token: str, audiences: Collection[str]) -> bool:
        try:
            claims = self._verified(token)
        except GrantError:
            return False
        return bool(claims.get("scope")) or claims.get("aud") in audiences

    def _verified(self, token: str) -> Mapping[str, Any]:
        """Return a JWT's claims; raise GrantError if its signature or lifetime is invalid."""
        try:
            pem = self._public_key(str(jwt.decode(token, verify=False).get("iss")))
            if pem is None:
                raise GrantError(
                    "invalid_grant",
                    "this cloud has no such service account: use its service-account.json",
                )
            claims = jwt.decode(token, pem, clock_skew_in_seconds=_CLOCK_SKEW)
            life = claims["exp"] - claims["iat"]
        except (GoogleAuthError, ValueError, TypeError, OverflowError) as error:
            raise GrantError("invalid_grant", f"not a valid JWT: {error}") from None
        # "not <=" instead of ">", because the lifetime can be NaN, which must be rejected too.
        if not life <= TOKEN_LIFE + _CLOCK_SKEW:
            raise GrantError("invalid_grant", "the JWT is valid for more than an hour: shorten exp")
        return claims


def token_route(accounts: Accounts, token_uri: str) -> Route:
    """Return the route of the token endpoint ``token_uri``, which needs no token."""

    def token(call: Call) -> Mapping[str, Any]:
        form = parse_qs(call.content.decode("utf-8", "replace"))
        if form.get("grant_type") != [GRANT_TYPE]:
            raise GrantError("unsupported_grant_type", f"grant_type is not {GRANT_TYPE}")
        token = accounts.grant(form.get("assertion", [""])[0], token_uri)
        return {"access_token": token, "expires_in": TOKEN_LIFE, "token_type": "Bearer"}

    return Route("oauth2.token", "POST", "/token", token, public=True)


def _public_pem(key: Any) -> str:
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return public.decode()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
