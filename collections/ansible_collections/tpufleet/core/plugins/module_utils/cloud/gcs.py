"""Small JSON objects in a Cloud Storage bucket, changed only by compare-and-swap. Controller only.

The JSON API: https://cloud.google.com/storage/docs/json_api/v1/objects, preconditions:
https://cloud.google.com/storage/docs/request-preconditions. An emulator, which
``STORAGE_EMULATOR_HOST`` names, is asked without credentials, as Google's own clients do.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from . import tpu_errors as errors
from .google_http import GoogleHttp, Patience, list_of
from .google_session import open_session
from .tpu_api import ApiSettings

GOOGLE = "https://storage.googleapis.com"
SCHEME = "gs://"
UPLOAD = "upload"
DOWNLOAD = "download"
HTTP_PRECONDITION_FAILED = 412
ABSENT = 0
"""The generation of an object that is not there (ifGenerationMatch=0)."""


class ConflictError(errors.TpuApiError):
    """The object is no longer at the generation that was read."""

    reason = "conflict"


@dataclass(frozen=True)
class Location:
    """A place below a bucket, ``gs://bucket/prefix``."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Location:
        """Read a gs:// address. Raises NotConfigured."""
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not bucket or bucket.startswith("."):
            raise errors.NotConfigured(f"{url!r} is no gs://bucket/prefix")
        return cls(bucket, prefix.strip("/"))

    def name(self, name: str) -> str:
        """Give an object's whole name."""
        return f"{self.prefix}/{name}" if self.prefix else name


@dataclass(frozen=True)
class StoredObject:
    """An object as a list names it; ``name`` is relative to the address, ``size`` in bytes.

    ``md5`` and ``crc32c`` are base64, empty if the API gave none.
    """

    name: str
    size: int
    generation: int
    md5: str = ""
    crc32c: str = ""

    @classmethod
    def of(cls, item: Mapping[str, Any], prefix: str, what: str) -> StoredObject:
        """Read an item of a list. Raises BadAnswer."""
        name, size = item.get("name"), str(item.get("size", "0"))
        if not isinstance(name, str) or not name.startswith(prefix) or not size.isdecimal():
            raise errors.BadAnswer(f"can't {what}: an item has no proper name or size")
        md5, crc32c = (str(item.get(field) or "") for field in ("md5Hash", "crc32c"))
        return cls(name[len(prefix) :], int(size), _generation(item, what), md5, crc32c)


class Objects(GoogleHttp):
    """The JSON objects below one gs:// address. Safe for several threads.

    Args:
        url: ``gs://bucket/prefix``.
        address: the API's; any but Google's own is an emulator's.
        credentials_file: a key; empty for the application-default credentials.
        patience: how often to ask again.
    """

    def __init__(
        self,
        url: str,
        *,
        address: str = GOOGLE,
        credentials_file: str = "",
        patience: Patience | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place = Location.of(url)
        self.url = url.rstrip("/")
        self.address = address.rstrip("/")
        self._patience = patience or Patience()
        self._sleep = sleep
        real = self.address == GOOGLE
        session = open_session(GOOGLE, credentials_file) if real else _without_credentials()
        self._session = _Session(session)

    @classmethod
    def of(cls, url: str, api: Mapping[str, Any]) -> Objects:
        """Open an address with the key and the storage endpoint of the inventory's tpu_api.

        Raises NotConfigured, also where this cloud has no bucket.
        """
        settings = ApiSettings.of(api)
        if not settings.storage_address:
            raise errors.NotConfigured(f"{url}: this cloud has no bucket")
        return cls(
            url, address=settings.storage_address, credentials_file=settings.credentials_file
        )

    def read(self, name: str) -> tuple[dict[str, Any], int]:
        """Return an object's JSON and its generation; ``{}`` and ABSENT if there is no object.

        Raises NotFound if the bucket is missing, TpuApiError.
        """
        what = f"read {self.url}/{name}"
        for _ in range(5):
            try:
                generation = _generation(self.ask("GET", self._path(name), what), what)
            except errors.NotFound:
                if self._is_listed(name, what):
                    continue  # it was written between the two requests
                return {}, ABSENT
            try:
                params = {"alt": "media", "generation": str(generation)}
                return dict(self.ask("GET", self._path(name), what, params=params)), generation
            except errors.NotFound:
                continue  # it was replaced between the two
        raise errors.Unavailable(f"can't {what}: it changes faster than it can be read")

    def write(self, name: str, value: Mapping[str, Any], generation: int) -> int:
        """Put an object in place of the one at ``generation``; give the new generation.

        ``value`` must be like no other writer's: by that a lost answer is told from a conflict.
        Raises ConflictError where it is at another one, TpuApiError.
        """
        what = f"write {self.url}/{name}"
        path = f"/upload/storage/v1/b/{quote(self.place.bucket, safe='')}/o"
        params = {"uploadType": "multipart", "ifGenerationMatch": str(generation)}
        try:
            body = {UPLOAD: {"name": self.place.name(name), "value": value}}
            return _generation(self.ask("POST", path, what, params=params, body=body), what)
        except ConflictError:
            # An answer that got lost may have been a yes: then what is there is what was sent.
            there, at = self.read(name)
            if at != generation and there == json.loads(json.dumps(value)):
                return at
            raise ConflictError(f"can't {what}: someone else has changed it meanwhile") from None

    def remove(self, name: str, generation: int) -> None:
        """Remove the object that is at ``generation``. Raises ConflictError, TpuApiError."""
        what = f"remove {self.url}/{name}"
        params = {"ifGenerationMatch": str(generation)}
        # The answer has no content, so it is not read as JSON.
        self.ask("DELETE", self._path(name), what, params=params, body={DOWNLOAD: {}})

    def names(self) -> list[str]:
        """Return the names of the objects below the address, relative to it."""
        return sorted(stored.name for stored in self.listed())

    def listed(self) -> list[StoredObject]:
        """List the objects below the address. Raises TpuApiError."""
        what = f"list {self.url}"
        prefix = f"{self.place.prefix}/" if self.place.prefix else ""
        pages = self.pages(self._objects_path, what, size="maxResults", params={"prefix": prefix})
        return [
            StoredObject.of(item, prefix, what)
            for page in pages
            for item in list_of(page, "items", Mapping, what)
        ]

    def content(
        self,
        name: str,
        start: int = 0,
        length: int | None = None,
        *,
        generation: int | None = None,
    ) -> bytes:
        """Return an object's bytes, all of them or a part.

        With ``generation`` it is this one or NotFound. Raises TpuApiError.
        """
        what = f"read {self.url}/{name}"
        last = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{last}"} if start or last else {}
        params = {"alt": "media"}
        if generation is not None:
            params["generation"] = str(generation)
        body = {DOWNLOAD: headers}
        return self.ask("GET", self._path(name), what, params=params, body=body)[DOWNLOAD]

    def _is_listed(self, name: str, what: str) -> bool:
        """Return whether the bucket lists the object. Raises NotFound if the bucket is missing.

        Google answers 404 for a missing object and for a missing bucket alike; a list is 404 only
        for the bucket. It needs no further permission: callers that may not list a bucket get 403
        for its missing objects.
        """
        whole = self.place.name(name)
        params = {"prefix": whole, "maxResults": "1"}
        page = self.ask("GET", self._objects_path, what, params=params)
        return any(item.get("name") == whole for item in list_of(page, "items", Mapping, what))

    @property
    def _objects_path(self) -> str:
        return f"/storage/v1/b/{quote(self.place.bucket, safe='')}/o"

    def _path(self, name: str) -> str:
        return f"{self._objects_path}/{quote(self.place.name(name), safe='')}"


class _Session:
    """A session that sends an upload as GCS wants it, and tells a conflict from other refusals."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def request(self, method: str, url: str, *, json: Any = None, **more: Any) -> Any:
        wants_bytes = json is not None and DOWNLOAD in json
        if wants_bytes:
            more["headers"], json = json[DOWNLOAD], None
        if json is not None and UPLOAD in json:
            boundary = secrets.token_hex(16)
            more["data"] = multipart(
                boundary, {"name": json[UPLOAD]["name"]}, json[UPLOAD]["value"]
            )
            more["headers"] = {"Content-Type": f"multipart/related; boundary={boundary}"}
            json = None
        reply = self._session.request(method, url, json=json, **more)
        if reply.status_code == HTTP_PRECONDITION_FAILED:
            raise ConflictError(f"{urlsplit(url).path} is at another generation")
        return _Bytes(reply) if wants_bytes and reply.ok else reply


class _Bytes:
    """An answer whose content is taken as it is, not as JSON."""

    def __init__(self, reply: Any) -> None:
        self.status_code, self.headers = reply.status_code, reply.headers
        self.content = b"{}"  # an empty object is an answer, too
        self._bytes = reply.content

    def json(self) -> dict[str, bytes]:
        return {DOWNLOAD: self._bytes}


def multipart(boundary: str, metadata: Mapping[str, Any], value: Mapping[str, Any]) -> bytes:
    """Write an upload of metadata and content (RFC 2387, multipart/related)."""
    parts = "".join(
        f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{text}\r\n"
        for text in (json.dumps(metadata), json.dumps(value))
    )
    return f"{parts}--{boundary}--\r\n".encode()


def _without_credentials() -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession

    session = AuthorizedSession(AnonymousCredentials())
    session.trust_env = False  # an emulator is never behind a proxy
    return session


def _generation(meta: Mapping[str, Any], what: str) -> int:
    text = str(meta.get("generation", ""))
    if not text.isdecimal():
        raise errors.BadAnswer(f"can't {what}: the answer has no generation")
    return int(text)
