"""Client of a Kubernetes Lease, over HTTPS: read, create, replace. Each is one atomic step at the API server.

A replacement carries the `resourceVersion` that was read. The server compares it, and answers 409 if another client has
changed the object since. Unknown parts of an object are sent back unchanged.
"""

# proofs: kubernetes-lock

from __future__ import annotations

import copy
import errno
import http.client
import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tandemmq.locker.contract import LockRefused, LockUnavailable

BODY_BYTES_MAX: Final = 1 << 20
API_VERSION: Final = "coordination.k8s.io/v1"
HOLDER_ANNOTATION: Final = "tandemmq/holder"

#: Status codes for which a retry does not help: a missing or wrong token, missing rights, an object that the server
#: does not accept.
_REFUSALS: Final = frozenset({400, 401, 403, 405, 415, 422})
# The server closed an idle connection. The request can be sent again: if the server has executed it already, the
# version does not match any more.
_STALE: Final = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease object of the API, as it was read or as it will be written."""

    content: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """Identity of the holder, or "" if the lease is free."""
        return str(self._spec.get("holderIdentity") or "")

    @property
    def uid(self) -> str:
        """Unique id of the object. It changes if the object is deleted and created again with the same name."""
        return str((self.content.get("metadata") or {}).get("uid") or "")

    @property
    def duration_seconds(self) -> int | None:
        return self._spec.get("leaseDurationSeconds")

    @property
    def transitions(self) -> int:
        return int(self._spec.get("leaseTransitions") or 0)

    @property
    def renewal(self) -> tuple[object, ...]:
        """Values that change with each renewal and each new holder; client-go compares the same."""
        spec = self._spec
        keys = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions")
        return tuple(spec.get(key) for key in keys)

    @property
    def holder_line(self) -> str:
        """JSON text that a TandemMQ broker wrote in the annotation, or "" if there is none."""
        return str((self.content.get("metadata", {}).get("annotations") or {}).get(HOLDER_ANNOTATION) or "")

    @property
    def _spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.content.get("spec") or {}
        return spec

    def changed(self, holder_line: str, **spec: object) -> Lease:
        """Return a copy with these values in its spec and this text in the annotation. "" removes the annotation."""
        made = copy.deepcopy(dict(self.content))
        made["spec"] = {**(made.get("spec") or {}), **spec}
        annotations = made.setdefault("metadata", {}).get("annotations") or {}
        annotations = {key: value for key, value in annotations.items() if key != HOLDER_ANNOTATION}
        made["metadata"]["annotations"] = (
            {**annotations, HOLDER_ANNOTATION: holder_line} if holder_line else annotations
        )
        return Lease(made)


def new_lease(namespace: str, name: str) -> Lease:
    """Return a free lease that can be created."""
    return Lease({"apiVersion": API_VERSION, "kind": "Lease", "metadata": {"name": name, "namespace": namespace}})


def micro_time(seconds: float) -> str:
    """Format a time by RFC 3339 with six digits, as the API's MicroTime requires."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaseApi:
    """Client of one Lease at an API server, with one connection, for one thread at a time. After `close` the next call
    connects again.

    Each call takes `seconds_max` at most. It raises LockUnavailable if the server may or may not have executed the
    request, LockRefused if the server has rejected it.
    """

    def __init__(self, where: str, server: str, namespace: str, name: str, token_file: str, ca_file: str) -> None:
        self._where = where
        self._address = urlsplit(server)
        self._path = f"/apis/{API_VERSION}/namespaces/{quote(namespace, safe='')}/leases"
        self._name = quote(name, safe="")
        self._token_file = token_file
        self._ca_file = ca_file
        self._connection: http.client.HTTPSConnection | None = None
        self._token = ""

    def read(self, seconds_max: float) -> Lease | None:
        """Return the Lease, or None if it does not exist."""
        status, answer = self._ask("GET", f"{self._path}/{self._name}", None, seconds_max)
        return None if status == http.client.NOT_FOUND else Lease(answer)

    def create(self, lease: Lease, seconds_max: float) -> Lease | None:
        """Create the Lease, and return the created object. None: it exists already. Raises LockRefused if the
        namespace does not exist."""
        status, answer = self._ask("POST", self._path, lease, seconds_max)
        if status == http.client.NOT_FOUND:
            raise LockRefused(f"{self._where} refuses this broker: 404, {answer.get('message')}")
        return None if status == http.client.CONFLICT else Lease(answer)

    def replace(self, lease: Lease, seconds_max: float) -> Lease | None:
        """Replace the Lease, and return the new object. None: it was deleted or changed since it was read."""
        status, answer = self._ask("PUT", f"{self._path}/{self._name}", lease, seconds_max)
        is_ours = status not in (http.client.CONFLICT, http.client.NOT_FOUND)  # prove: replaced-what-was-read
        return Lease(answer) if is_ours else None

    def close(self) -> None:
        """Close the connection. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # The wire

    def _ask(self, verb: str, path: str, lease: Lease | None, seconds_max: float) -> tuple[int, dict[str, Any]]:
        """Send a request. Return (status, object) for the status codes that `read`, `create` and `replace` handle;
        raise an error for the others."""
        deadline = time.monotonic() + seconds_max
        try:
            status, body = self._exchange(verb, path, lease, deadline)
            answer = json.loads(body)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise LockRefused(
                f"{self._where} cannot be trusted: {error.verify_message}; is {self._ca_file} its authority?"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            what = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else repr(error)
            number = error.errno if isinstance(error, OSError) else None
            if isinstance(error, TimeoutError):
                what, number = f"no answer within {seconds_max:g} s", errno.ETIMEDOUT
            raise LockUnavailable(f"{self._where} is unavailable: {what}", number) from error
        text = answer.get("message") if isinstance(answer, dict) else None
        if status in _REFUSALS:
            raise LockRefused(f"{self._where} refuses this broker: {status}, {text}")
        is_meant = status in (http.client.OK, http.client.CREATED, http.client.NOT_FOUND, http.client.CONFLICT)
        if not is_meant or not isinstance(answer, dict):
            raise LockUnavailable(f"{self._where} is unavailable: {status}, {text}")
        return status, answer

    def _exchange(self, verb: str, path: str, lease: Lease | None, deadline: float) -> tuple[int, bytes]:
        if self._connection is not None:
            try:
                return self._exchange_once(self._connection, verb, path, lease, deadline)
            except _STALE:
                self.close()
        host, port = self._address.hostname or "", self._address.port
        context = ssl.create_default_context(cafile=self._ca_file)
        self._connection = http.client.HTTPSConnection(host, port, timeout=_remaining(deadline), context=context)
        return self._exchange_once(self._connection, verb, path, lease, deadline)

    def _exchange_once(
        self, connection: http.client.HTTPSConnection, verb: str, path: str, lease: Lease | None, deadline: float
    ) -> tuple[int, bytes]:
        # Kubernetes rewrites the token file about every hour. If the file is empty at this moment, the former token is
        # used, which is still valid.
        with open(self._token_file, encoding="ascii") as file:
            self._token = file.read().strip() or self._token
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        body = None
        if lease is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(lease.content).encode()
        if connection.sock is not None:
            connection.sock.settimeout(_remaining(deadline))
        connection.request(verb, path, body, headers)
        assert connection.sock is not None, "no socket after a request"
        connection.sock.settimeout(_remaining(deadline))
        response = connection.getresponse()
        answer = response.read(BODY_BYTES_MAX + 1)
        if len(answer) > BODY_BYTES_MAX:
            raise ValueError(f"an answer of more than {BODY_BYTES_MAX} bytes")
        return response.status, answer


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
