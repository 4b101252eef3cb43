"""Kubernetes' Lease by plain HTTPS: read, create, replace; each an atomic step at the API server.

What is replaced must be the version that was read: the server compares `resourceVersion`, and says 409 when somebody
was quicker. Unknown parts of an object go back as they came.
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

#: Answers that time does not mend: no or a wrong token, no rights, an object that the server does not accept.
_REFUSALS: Final = frozenset({400, 401, 403, 405, 415, 422})
# A connection that lay idle was closed by the other side: what was sent on it was not read, or it was, and its version
# will tell when it is sent again.
_STALE: Final = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True, slots=True)
class Lease:
    """An object of the API, as it was read or is to be written."""

    content: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """The holder; empty: the lease is free."""
        return str(self._spec.get("holderIdentity") or "")

    @property
    def uid(self) -> str:
        """Which object this is: one that was deleted and made anew by the same name has another."""
        return str((self.content.get("metadata") or {}).get("uid") or "")

    @property
    def duration_seconds(self) -> int | None:
        return self._spec.get("leaseDurationSeconds")

    @property
    def transitions(self) -> int:
        return int(self._spec.get("leaseTransitions") or 0)

    @property
    def renewal(self) -> tuple[object, ...]:
        """Another one means that its holder did something, as client-go sees it."""
        spec = self._spec
        keys = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions")
        return tuple(spec.get(key) for key in keys)

    @property
    def holder_line(self) -> str:
        """What a broker of ours wrote beside; empty: nothing."""
        return str((self.content.get("metadata", {}).get("annotations") or {}).get(HOLDER_ANNOTATION) or "")

    @property
    def _spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.content.get("spec") or {}
        return spec

    def changed(self, holder_line: str, **spec: object) -> Lease:
        """The same object with these parts of its spec, and this line; an empty line takes it away."""
        made = copy.deepcopy(dict(self.content))
        made["spec"] = {**(made.get("spec") or {}), **spec}
        annotations = made.setdefault("metadata", {}).get("annotations") or {}
        annotations = {key: value for key, value in annotations.items() if key != HOLDER_ANNOTATION}
        made["metadata"]["annotations"] = (
            {**annotations, HOLDER_ANNOTATION: holder_line} if holder_line else annotations
        )
        return Lease(made)


def new_lease(namespace: str, name: str) -> Lease:
    """A free lease that does not exist yet."""
    return Lease({"apiVersion": API_VERSION, "kind": "Lease", "metadata": {"name": name, "namespace": namespace}})


def micro_time(seconds: float) -> str:
    """RFC 3339 with six digits, as the API's MicroTime wants it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaseApi:
    """One Lease at one API server, over one connection, for one thread at a time. The next call connects anew.

    Every wait for the server is bounded by `seconds_max`. LockUnavailable: it may have happened or not. LockRefused: it
    did not, and will not.
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
        """None: there is none."""
        status, answer = self._ask("GET", f"{self._path}/{self._name}", None, seconds_max)
        return None if status == http.client.NOT_FOUND else Lease(answer)

    def create(self, lease: Lease, seconds_max: float) -> Lease | None:
        """As it stands now; None: there is one already. LockRefused when there is no such namespace."""
        status, answer = self._ask("POST", self._path, lease, seconds_max)
        if status == http.client.NOT_FOUND:
            raise LockRefused(f"{self._where} refuses us: 404, {answer.get('message')}")
        return None if status == http.client.CONFLICT else Lease(answer)

    def replace(self, lease: Lease, seconds_max: float) -> Lease | None:
        """As it stands now; None: it is not there, or was changed since it was read."""
        status, answer = self._ask("PUT", f"{self._path}/{self._name}", lease, seconds_max)
        is_ours = status not in (http.client.CONFLICT, http.client.NOT_FOUND)  # prove: replaced-what-was-read
        return Lease(answer) if is_ours else None

    def close(self) -> None:
        """Hang up. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # The wire

    def _ask(self, verb: str, path: str, lease: Lease | None, seconds_max: float) -> tuple[int, dict[str, Any]]:
        """Status and object; only what `read`, `create` and `replace` have a meaning for comes back."""
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
            raise LockUnavailable(f"{self._where} cannot be asked: {what}", number) from error
        text = answer.get("message") if isinstance(answer, dict) else None
        if status in _REFUSALS:
            raise LockRefused(f"{self._where} refuses us: {status}, {text}")
        is_meant = status in (http.client.OK, http.client.CREATED, http.client.NOT_FOUND, http.client.CONFLICT)
        if not is_meant or not isinstance(answer, dict):
            raise LockUnavailable(f"{self._where} cannot be asked: {status}, {text}")
        return status, answer

    def _exchange(self, verb: str, path: str, lease: Lease | None, deadline: float) -> tuple[int, bytes]:
        if self._connection is not None:
            try:
                return self._exchange_once(self._connection, verb, path, lease, deadline)
            except _STALE:
                self.close()
        host, port = self._address.hostname or "", self._address.port
        context = ssl.create_default_context(cafile=self._ca_file)
        self._connection = http.client.HTTPSConnection(host, port, timeout=_left(deadline), context=context)
        return self._exchange_once(self._connection, verb, path, lease, deadline)

    def _exchange_once(
        self, connection: http.client.HTTPSConnection, verb: str, path: str, lease: Lease | None, deadline: float
    ) -> tuple[int, bytes]:
        # Tokens are replaced every hour or so, by rewriting the file. Meanwhile it may be empty; the server would
        # refuse that for good, and the former token holds on.
        with open(self._token_file, encoding="ascii") as file:
            self._token = file.read().strip() or self._token
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        body = None
        if lease is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(lease.content).encode()
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline))
        connection.request(verb, path, body, headers)
        assert connection.sock is not None, "who has sent a request is connected"
        connection.sock.settimeout(_left(deadline))
        response = connection.getresponse()
        answer = response.read(BODY_BYTES_MAX + 1)
        if len(answer) > BODY_BYTES_MAX:
            raise ValueError(f"an answer of more than {BODY_BYTES_MAX} bytes")
        return response.status, answer


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
