"""Client for objects in a Cloud Storage bucket. JSON objects change only by compare-and-swap.

Runs on the controller only. JSON API: https://cloud.google.com/storage/docs/json_api/v1/objects,
preconditions: https://cloud.google.com/storage/docs/request-preconditions. As with Google's own
clients, requests to an emulator (``STORAGE_EMULATOR_HOST``) carry no credentials.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import quote

from . import errors
from .http import GoogleHttp, RetryPolicy, list_of
from .session import GOOGLE_STORAGE, ApiSettings, open_storage_session

SCHEME = "gs://"
ABSENT = 0
"""The generation of an object that does not exist (ifGenerationMatch=0)."""
SMALL_OBJECT_RETRY = RetryPolicy(request_timeout=15)
"""Retry policy for small JSON objects. If the bucket hangs, a request must end before a lease that
it renews expires, and a pass of the watch must not wait for minutes."""
_GENERATION_HEADER = "x-goog-generation"
_READ_TRIES = 5
_JSON = "application/json; charset=UTF-8"


@dataclass(frozen=True)
class BucketUrl:
    """Parsed ``gs://bucket/prefix``. Names of objects are relative to this URL."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> BucketUrl:
        """Parse a gs:// URL. Raises NotConfigured."""
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not bucket or bucket.startswith("."):
            raise errors.NotConfigured(f"bucket URL: expected gs://bucket/prefix ({url!r:.200})")
        return cls(bucket, prefix.strip("/"))

    @property
    def api_path(self) -> str:
        """The path of the bucket in URLs of the JSON API."""
        return f"/storage/v1/b/{quote(self.bucket, safe='')}"

    def full_name(self, name: str) -> str:
        """Return an object's full name in the bucket, with the URL's prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name


@dataclass(frozen=True)
class StoredObject:
    """An object in a list. ``name`` is relative to the bucket URL, ``size`` is in bytes.

    ``md5`` and ``crc32c`` are in base64, empty if the API returned none. ``encoding`` is the
    object's Content-Encoding. If it is gzip, the returned content may be longer than ``size``.
    """

    name: str
    size: int
    generation: int
    md5: str = ""
    crc32c: str = ""
    encoding: str = ""

    @classmethod
    def parse(cls, item: Mapping[str, Any], prefix: str, action: str) -> StoredObject:
        """Parse an item of the API's object list. Raises BadAnswer.

        ``prefix`` is removed from the object's name. ``action`` describes the request in the error.
        """
        name, size = item.get("name"), str(item.get("size", "0"))
        if not isinstance(name, str) or not name.startswith(prefix) or not size.isdecimal():
            raise errors.BadAnswer(f"can't {action}: malformed name or size in the response")
        details = [str(item.get(key) or "") for key in ("md5Hash", "crc32c", "contentEncoding")]
        generation = _generation(item.get("generation"), action)
        return cls(name[len(prefix) :], int(size), generation, *details)


class Bucket:
    """Client for the objects below one gs:// URL. Thread-safe. Raises only CloudError.

    Args:
        url: ``gs://bucket/prefix``.
        address: base URL of the API, either Google's or that of an emulator.
        credentials_file: a key file; empty for the application-default credentials.
        retry: how often to retry a request, and how long to wait.
    """

    def __init__(
        self,
        url: str,
        *,
        address: str = GOOGLE_STORAGE,
        credentials_file: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        self.bucket_url = BucketUrl.parse(url)
        self.url = url.rstrip("/")
        self.address = address.rstrip("/")
        self._http = GoogleHttp(
            self.address,
            partial(open_storage_session, self.address, credentials_file),
            retry=retry,
        )

    @classmethod
    def of(cls, url: str, api: Mapping[str, Any], *, retry: RetryPolicy | None = None) -> Bucket:
        """Create a client with the settings in ``api``, the inventory's variable ``tpu_api``.

        ``retry`` is how often to retry a request, and how long to wait; None for the default.
        Raises NotConfigured for an invalid URL, and if the settings name a cloud without Cloud
        Storage.
        """
        settings = ApiSettings.of(api)
        if not settings.storage_address:
            raise errors.NotConfigured(
                f"{url}: this cloud has no Cloud Storage. Use a directory instead of a gs:// URL"
            )
        return cls(
            url,
            address=settings.storage_address,
            credentials_file=settings.credentials_file,
            retry=retry,
        )

    def read(self, name: str) -> tuple[dict[str, Any], int]:
        """Return an object's JSON and its generation; ``{}`` and 0 (ABSENT) if there is none.

        Raises NotFound if the bucket does not exist, BadObject if the content is not a JSON object.
        """
        action = f"read {self.url}/{name}"
        for _ in range(_READ_TRIES):
            try:
                reply = self._http.send("GET", self._path(name), action, params={"alt": "media"})
            except errors.NotFound:
                if self._is_listed(name, action):
                    continue  # the object was created after the failed read: read it again
                return {}, ABSENT
            generation = _generation(reply.headers.get(_GENERATION_HEADER), action)
            try:
                return dict(self._http.json_object(reply, action)), generation
            except errors.BadAnswer:
                raise errors.BadObject(
                    f"{self.url}/{name} is not a JSON object. Repair it or move it away"
                ) from None
        raise errors.Unavailable(f"can't {action}: it is listed, but can't be read. Try again")

    def write(self, name: str, value: Mapping[str, Any], generation: int) -> int:
        """Replace the object if it is at ``generation``; return the new generation.

        Raises Conflict if the object is at another generation, unless its content then equals
        ``value``: this means that an earlier try succeeded and its response was lost. Therefore
        different writers must never write equal values.
        """
        action = f"write {self.url}/{name}"
        content = json.dumps(value).encode()
        try:
            answer = self._insert(
                name, content, {"contentType": _JSON}, {"ifGenerationMatch": str(generation)}
            )
            return _generation(answer.get("generation"), action)
        except errors.Conflict:
            # An earlier try may have succeeded although its response was lost. Then the stored
            # value equals ``value``.
            stored, stored_generation = self.read(name)
            if stored_generation != generation and stored == json.loads(json.dumps(value)):
                return stored_generation
            raise errors.Conflict(f"can't {action}: it has changed since it was read") from None

    def upload(self, name: str, content: bytes, metadata: Mapping[str, str]) -> None:
        """Create or replace the object, whatever its generation.

        ``metadata`` are fields of the object resource, such as contentType and cacheControl.
        """
        self._insert(name, content, metadata, {})

    def browser_url(self, name: str) -> str:
        """Return the URL at which users who may read an object can open it in a browser.

        Google asks them to log in (an emulator does not):
        https://cloud.google.com/storage/docs/request-endpoints#cookieauth.
        """
        if self.address != GOOGLE_STORAGE:
            return f"{self.address}{self._path(name)}?alt=media"
        path = quote(f"{self.bucket_url.bucket}/{self.bucket_url.full_name(name)}")
        return f"https://storage.cloud.google.com/{path}"

    def _insert(
        self,
        name: str,
        content: bytes,
        metadata: Mapping[str, str],
        precondition: Mapping[str, str],
    ) -> Mapping[str, Any]:
        """Store an object in one request; return the metadata in the response.

        ``precondition`` are query parameters such as ifGenerationMatch.
        """
        action = f"write {self.url}/{name}"
        # Use a multipart upload, because the emulator ignores preconditions of simple uploads.
        boundary = secrets.token_hex(16)
        full_metadata = {"name": self.bucket_url.full_name(name), **metadata}
        reply = self._http.send(
            "POST",
            f"/upload{self._objects_path}",
            action,
            params={"uploadType": "multipart", **precondition},
            data=_multipart(boundary, full_metadata, content),
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            is_transfer=True,
        )
        return self._http.json_object(reply, action)

    def remove(self, name: str, generation: int) -> None:
        """Delete the object if it is at ``generation``; raise Conflict if it is at another one."""
        params = {"ifGenerationMatch": str(generation)}
        # An earlier try, whose response was lost, may have deleted the object.
        with suppress(errors.NotFound):
            self._http.send("DELETE", self._path(name), f"remove {self.url}/{name}", params=params)

    def names(self, directly: bool = False) -> list[str]:
        """Return the sorted names of the objects; ``directly`` omits those in subdirectories."""
        return sorted(stored.name for stored in self.list(directly))

    def list(
        self, directly: bool = False, *, start: str = "", most: int | None = None
    ) -> list[StoredObject]:
        """List the objects below the bucket URL, sorted by name.

        With ``start``, lists only objects whose names begin with it; with ``most``, only this many
        objects. With ``directly``, leaves out objects in subdirectories.
        """
        action = f"list {self.url}/{start}".rstrip("/")
        prefix = f"{self.bucket_url.prefix}/" if self.bucket_url.prefix else ""
        params = {"prefix": f"{prefix}{start}", **({"delimiter": "/"} if directly else {})}
        pages = self._http.pages(self._objects_path, action, size="maxResults", params=params)
        objects = (
            StoredObject.parse(item, prefix, action)
            for page in pages
            for item in list_of(page, "items", Mapping, action)
        )
        return list(islice(objects, most))

    def content(
        self,
        name: str,
        start: int = 0,
        length: int | None = None,
        *,
        generation: int | None = None,
    ) -> bytes:
        """Return an object's content, or ``length`` bytes of it from ``start``.

        With ``generation``, raises NotFound if that generation no longer exists.
        """
        last = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{last}"} if start or last else {}
        params = {"alt": "media"}
        if generation is not None:
            params["generation"] = str(generation)
        action = f"read {self.url}/{name}"
        reply = self._http.send(
            "GET", self._path(name), action, params=params, headers=headers, is_transfer=True
        )
        return bytes(reply.content)

    def describe(self) -> Mapping[str, Any]:
        """Return the bucket's metadata as JSON, such as its ``location``."""
        action = f"read the bucket {self.bucket_url.bucket}"
        return self._http.ask("GET", self.bucket_url.api_path, action)

    def _is_listed(self, name: str, action: str) -> bool:
        """Return whether the bucket lists the object. Raises NotFound if the bucket is missing.

        Call it after a read returned 404, to learn whether the object or its bucket is missing.
        The user may list objects in this case: without that permission, the read of a missing
        object returns 403.
        """
        full_name = self.bucket_url.full_name(name)
        params = {"prefix": full_name, "maxResults": "1"}
        page = self._http.ask("GET", self._objects_path, action, params=params)
        return any(
            item.get("name") == full_name for item in list_of(page, "items", Mapping, action)
        )

    @property
    def _objects_path(self) -> str:
        return f"{self.bucket_url.api_path}/o"

    def _path(self, name: str) -> str:
        return f"{self._objects_path}/{quote(self.bucket_url.full_name(name), safe='')}"


def _multipart(boundary: str, metadata: Mapping[str, str], content: bytes) -> bytes:
    """Encode metadata and content as the body of a multipart/related upload (RFC 2387)."""
    sections = ((_JSON, json.dumps(metadata).encode()), (metadata["contentType"], content))
    body = b"".join(
        f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + section + b"\r\n"
        for kind, section in sections
    )
    return body + f"--{boundary}--\r\n".encode()


def _generation(value: object, action: str) -> int:
    text = str(value or "")
    if not text.isdecimal():
        raise errors.BadAnswer(f"can't {action}: the response has no generation")
    return int(text)
