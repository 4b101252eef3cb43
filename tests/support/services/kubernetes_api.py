"""A small model of Kubernetes' API for Leases: over HTTPS, in this process, with failures on demand.

It follows the rules of the original (kubernetes/kubernetes, pkg/registry/coordination/lease): a replacement has the
`resourceVersion` on which it is based, and gets a 409 if there is a newer one; times are MicroTimes with six digits;
unknown fields are refused, as with fieldValidation=Strict; numbers must be numbers; a request without a token gets a
401, without rights a 403.
"""

from __future__ import annotations

import copy
import json
import re
import ssl
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GROUP = "/apis/coordination.k8s.io/v1"
_PATH = re.compile(rf"{GROUP}/namespaces/(?P<namespace>[^/]+)/leases(?:/(?P<name>[^/?]+))?")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_METADATA = {
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "labels", "annotations"),
    *("ownerReferences", "finalizers", "managedFields", "generateName", "selfLink"),
}
_SPEC: dict[str, type] = {
    "holderIdentity": str,
    "leaseDurationSeconds": int,
    "acquireTime": str,
    "renewTime": str,
    "leaseTransitions": int,
    "strategy": str,
    "preferredHolder": str,
}


class Refusal(Exception):
    """A refusal, which is sent as a Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
        }
        self.code = code
        super().__init__(message)


class KubernetesApi:
    """The server. A client needs `server`, `token_file`, `ca_file` and `namespace`."""

    namespace = "tests"

    def __init__(self, directory: Path, certificate: Path, key: Path) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.may: set[str] = {"get", "create", "update"}
        self.token = uuid.uuid4().hex
        self.failing_with: int | None = None
        self.loses_replies_to: set[str] = (
            set()
        )  # methods whose requests are executed, after which the connection ends without an answer
        self._answers = threading.Event()
        self._answers.set()
        self._version = 1000
        self._guard = threading.Lock()
        self.token_file, self.ca_file = directory / "token", certificate
        self.token_file.write_text(f"{self.token}\n")
        (directory / "namespace").write_text(self.namespace)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca_file, key)
        # The handshake runs in the handler's thread, so that a slow client does not block others.
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.server = f"https://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._answers.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop answering; requests made in the meantime are executed afterwards."""
        self._answers.clear()
        try:
            yield
        finally:
            self._answers.set()

    @contextmanager
    def failing(self, code: int) -> Iterator[None]:
        self.failing_with = code
        try:
            yield
        finally:
            self.failing_with = None

    # Requests

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        self._answers.wait()
        with self._guard:
            self.requests.append(method)
            try:
                return self._do(method, path, token, body)
            except Refusal as refusal:
                return refusal.code, refusal.status

    def _do(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        if self.failing_with is not None:
            raise Refusal(self.failing_with, "InternalError", "an error on the server")
        if token != f"Bearer {self.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        match = _PATH.fullmatch(path)
        if match is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        verb = {"GET": "get", "POST": "create", "PUT": "update"}.get(method, method)
        if verb not in self.may:
            who = "system:serviceaccount:tests:broker"
            raise Refusal(403, "Forbidden", f'leases is forbidden: User "{who}" cannot {verb} resource "leases"')
        if match["namespace"] != self.namespace:
            raise Refusal(404, "NotFound", f'namespaces "{match["namespace"]}" not found')
        if verb == "get":
            return 200, self._found(match["name"])
        lease = _checked(body, self.namespace)
        return self._create(lease) if verb == "create" else self._update(match["name"], lease)

    def _found(self, name: str) -> dict[str, Any]:
        if name not in self.leases:
            raise Refusal(404, "NotFound", f'leases.coordination.k8s.io "{name}" not found')
        return copy.deepcopy(self.leases[name])

    def _create(self, lease: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = lease["metadata"]["name"]
        if lease["metadata"].get("resourceVersion"):
            raise Refusal(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if name in self.leases:
            raise Refusal(409, "AlreadyExists", f'leases.coordination.k8s.io "{name}" already exists')
        lease["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
        return 201, self._keep(lease)

    def _update(self, name: str, lease: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        metadata = lease["metadata"]
        if metadata["name"] != name:
            raise Refusal(400, "BadRequest", "the name of the object does not match the name on the URL")
        if name not in self.leases:
            if metadata.get("uid"):
                raise Refusal(409, "Conflict", "Precondition failed: UID in precondition")
            return self._create(lease)  # AllowCreateOnUpdate
        now = self.leases[name]["metadata"]
        if not metadata.get("resourceVersion"):
            raise Refusal(
                422, "Invalid", "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            )
        if metadata["resourceVersion"] != now["resourceVersion"]:
            raise Refusal(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        if metadata.get("uid", now["uid"]) != now["uid"]:
            raise Refusal(409, "Conflict", "Precondition failed: UID in precondition")
        lease["metadata"] |= {"uid": now["uid"], "creationTimestamp": now["creationTimestamp"]}
        return 200, self._keep(lease)

    def _keep(self, lease: dict[str, Any]) -> dict[str, Any]:
        self._version += 7  # the counter belongs to the whole cluster, so there are gaps
        lease["metadata"]["resourceVersion"] = str(self._version)
        self.leases[lease["metadata"]["name"]] = lease
        return copy.deepcopy(lease)

    def label(self, name: str, key: str, value: str) -> None:
        """Change the object as another client, but not its holder."""
        with self._guard:
            lease = copy.deepcopy(self.leases[name])
            lease["metadata"].setdefault("labels", {})[key] = value
            self._keep(lease)

    def give_to(self, name: str, identity: str) -> None:
        with self._guard:
            lease = copy.deepcopy(self.leases[name])
            lease["spec"]["holderIdentity"] = identity
            self._keep(lease)


def _checked(body: bytes, namespace: str) -> dict[str, Any]:
    try:
        lease = json.loads(body)
        metadata, spec = lease["metadata"], lease.get("spec", {})
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(400, "BadRequest", f"no Lease: {error!r}") from error
    if (lease.get("apiVersion"), lease.get("kind")) != ("coordination.k8s.io/v1", "Lease"):
        raise Refusal(400, "BadRequest", "no Lease of coordination.k8s.io/v1")
    unknown = [
        *(f"{key}" for key in lease.keys() - {"apiVersion", "kind", "metadata", "spec"}),
        *(f"metadata.{key}" for key in metadata.keys() - _METADATA),
        *(f"spec.{key}" for key in spec.keys() - _SPEC.keys()),
    ]
    if unknown:
        raise Refusal(400, "BadRequest", f'strict decoding error: unknown field "{unknown[0]}"')
    if metadata.setdefault("namespace", namespace) != namespace:
        raise Refusal(400, "BadRequest", "the namespace of the provided object does not match the namespace sent")
    if not metadata.get("name"):
        raise Refusal(422, "Invalid", "metadata.name: Required value: name or generateName is required")
    for kept in ("labels", "annotations"):
        if not all(isinstance(text, str) for pair in (metadata.get(kept) or {}).items() for text in pair):
            raise Refusal(400, "BadRequest", f"metadata.{kept}: not a map of texts")
    for key, value in spec.items():
        if value is not None and (not isinstance(value, _SPEC[key]) or isinstance(value, bool)):
            raise Refusal(400, "BadRequest", f"cannot unmarshal into Go struct field LeaseSpec.spec.{key}")
        if key.endswith("Time") and value is not None and not _MICRO_TIME.fullmatch(value):
            raise Refusal(400, "BadRequest", f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00"')
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        raise Refusal(422, "Invalid", "spec.leaseDurationSeconds: Invalid value: must be greater than 0")
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        raise Refusal(422, "Invalid", "spec.leaseTransitions: Invalid value: must be greater than or equal to 0")
    checked: dict[str, Any] = lease
    return checked


def _handler(api: KubernetesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            code, answer = api.answer(self.command, self.path, self.headers.get("Authorization"), body)
            if self.command in api.loses_replies_to:
                self.close_connection = True
                return
            content = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, ValueError):  # the client was killed, or does not trust the certificate
                pass

    return Handler


def make_certificate(certificate: Path, key: Path) -> None:
    """Create a self-signed certificate for 127.0.0.1."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=kubernetes"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:TRUE"),
        ],
        check=True,
        capture_output=True,
    )
