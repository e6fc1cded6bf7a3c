"""An HTTPS proxy on loopback that forwards requests for Google's APIs to a local cloud.

Clients need no change: they request ``https://tpu.googleapis.com/…`` through the proxy that
``HTTPS_PROXY`` names. The proxy terminates TLS with a certificate of a test authority. It refuses
connections to all other hosts, so that no request leaves this computer.
"""

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from googleapiclient.discovery_cache import get_static_doc

HOSTS = ("tpu.googleapis.com", "compute.googleapis.com")
# Python's clients accept an authority's certificate only with these key usages.
_SIGNS = x509.KeyUsage(
    **dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment"),
            *("data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
        ),
        False,
    ),
    key_cert_sign=True,
    crl_sign=True,
)
_NOT_FORWARDED = ("host", "connection", "proxy-connection")


class GoogleFront:
    """The proxy in a thread; ``seen`` lists the host and path of every request.

    ``authority`` is the file of the certificate that clients have to trust. ``key`` and
    ``certificate`` are the files of a server certificate for ``HOSTS`` and ``localhost``.
    """

    def __init__(self, directory: Path, endpoint: str) -> None:
        self.authority = directory / "authority.pem"
        self.certificate, self.key = directory / "server.pem", directory / "server.key"
        _write_certificates(self.authority, self.certificate, self.key)
        self.seen: list[tuple[str, str]] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        self._server = _Proxy(context, endpoint, self.seen)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that make Google's clients use and trust the proxy."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        proxies = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), url)
        exceptions = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        trust = (
            *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPLIB2_CA_CERTS"),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        )
        return {**proxies, **exceptions, **dict.fromkeys(trust, str(self.authority))}

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, context: ssl.SSLContext, endpoint: str, seen: list[tuple[str, str]]) -> None:
        self.context, self.endpoint, self.seen = context, endpoint, seen
        super().__init__(("127.0.0.1", 0), _Connection)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: _Proxy
    host = ""

    def do_CONNECT(self) -> None:
        host = self.path.partition(":")[0]
        if host not in HOSTS:
            self.send_error(403, f"{host} is not one of {', '.join(HOSTS)}")
            return
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb", self.rbufsize)
        self.wfile = self.connection.makefile("wb")
        self.host = host

    def _forward(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.seen.append((self.host, urlsplit(self.path).path))
        if urlsplit(self.path).path == "/$discovery/rest":
            self._answer(200, "application/json", self._discovery())
            return
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _NOT_FORWARDED
        }
        there = http.client.HTTPConnection(urlsplit(self.server.endpoint).netloc, timeout=60)
        there.request(self.command, self.path, content, headers)
        answer = there.getresponse()
        self._answer(answer.status, answer.headers["Content-Type"], answer.read())
        there.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815 - the base class's names

    def _discovery(self) -> bytes:
        """Return the discovery document of the host's API, which google-api-python-client bundles.

        The query parameter ``version`` selects the version of the API; the default is v2.
        """
        (version,) = parse_qs(urlsplit(self.path).query).get("version", ["v2"])
        text = get_static_doc(self.host.partition(".")[0], version)
        return json.dumps(json.loads(text)).encode()

    def _answer(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def _write_certificates(authority: Path, certificate: Path, key: Path) -> None:
    """Write an authority's certificate and a server certificate that it signs; valid for a day."""
    own = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of a test")])
    server = ec.generate_private_key(ec.SECP256R1())
    hosts = [x509.DNSName(host) for host in (*HOSTS, "localhost")]
    addresses = [x509.IPAddress(IPv4Address("127.0.0.1"))]
    root = (
        _builder(name, name, own)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .sign(own, hashes.SHA256())
    )
    leaf = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), name, server)
        .add_extension(x509.SubjectAlternativeName([*hosts, *addresses]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key()), critical=False
        )
        .sign(own, hashes.SHA256())
    )
    authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    key.touch(0o600)
    key.write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
