"""HTTP proxy that makes a bucket read-only: forwards reads, answers every write with a 403.

``python -m localcloud.bucket_read_only ENDPOINT EMULATOR --of=DIRECTORY``

ENDPOINT is the URL at which the proxy listens, EMULATOR is the URL of the bucket's emulator.
DIRECTORY, the bucket's directory, only identifies the process.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from localcloud.api.http_front import Connection, Server

_CHUNK = 256 * 1024
# Hop-by-hop headers, which a proxy must not forward (RFC 9110, section 7.6.1).
_HOP_BY_HOP_HEADERS = ("connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer")


class ReadOnly(Server):
    """The proxy: forwards reads to ``emulator_address`` (host and port) and refuses writes."""

    def __init__(self, endpoint: str, emulator_url: str) -> None:
        address = urlsplit(endpoint)
        self.emulator_address = urlsplit(emulator_url).netloc
        log = logging.getLogger(__name__)
        super().__init__((address.hostname or "", address.port or 0), _Connection, log)


class _Connection(Connection):
    # In HTTP/1.0, a response without Content-Length ends when the connection closes.
    protocol_version = "HTTP/1.0"
    server: ReadOnly

    def do_GET(self) -> None:  # noqa: N802 - http.server prescribes this name
        """Forward a read to the emulator and return its response."""
        upstream = HTTPConnection(self.server.emulator_address, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP_HEADERS}
        try:
            upstream.request(self.command, self.path, headers=headers)
            response = upstream.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in (*_HOP_BY_HOP_HEADERS, "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            while chunk := response.read(_CHUNK):
                self.wfile.write(chunk)
        except (HTTPException, ConnectionRefusedError) as error:
            self.server.log.warning("%s %s: %s", self.command, self.path, error)
        finally:
            upstream.close()

    do_HEAD = do_GET  # noqa: N815 - http.server prescribes this name

    def do_POST(self) -> None:  # noqa: N802 - http.server prescribes this name
        """Reject a write with the error that Google Cloud Storage returns."""
        # Read the request body: closing with unread data resets the connection, so that the client
        # might not receive the response.
        remaining = int(self.headers.get("Content-Length") or 0)
        while remaining and (read := self.rfile.read(min(remaining, _CHUNK))):
            remaining -= len(read)
        message = "The caller does not have storage.objects.create or delete access: read-only"
        reason = {"message": message, "domain": "global", "reason": "forbidden"}
        error = {"code": 403, "message": message, "errors": [reason]}
        content = json.dumps({"error": error}).encode()
        self.send(403, {"Content-Type": "application/json"}, content)

    do_PUT = do_PATCH = do_DELETE = do_POST  # noqa: N815 - http.server prescribes these names


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the proxy until the process is terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint")
    parser.add_argument("emulator")
    parser.add_argument("--of", help="the bucket's directory; identifies this process")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    ReadOnly(options.endpoint, options.emulator).serve_forever()


if __name__ == "__main__":
    main()
