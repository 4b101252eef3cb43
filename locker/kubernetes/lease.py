"""Lock `kubernetes-lease`: a Lease of coordination.k8s.io/v1, which the controllers of Kubernetes use to elect a
leader.

    holderIdentity         <name>_<nonce>; empty: free. Each life of a lock has a new nonce.
    leaseDurationSeconds   lock_acquire_sleep_interval, in whole seconds
    acquireTime, renewTime by the clock of the holder's host: for operators, and to show a renewal
    leaseTransitions       number of changes of the holder
    annotation             tandemmq/holder, JSON: holder, epoch, pid, host, admin, since, nonce

The algorithm is that of client-go: clocks of different hosts are never compared. If a standby sees the Lease unchanged
for its duration, *by its own boot clock*, it may replace the Lease; the server accepts only one replacement. The proof
of the holder begins before the renewal is sent, and the waiting of a standby begins after the renewal arrived. So a
standby cannot take the Lease while the proof is valid.

After a conflict the Lease is read again. If another client changed a label, or the answer to our last renewal was lost,
the Lease is still ours.

The uid identifies a Lease, not its name. An object that was deleted and created again (`kubectl apply` of a saved copy)
may have our identity although another broker had the lock meanwhile.
"""

# proofs: kubernetes-lock

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.locker.contract import (
    NO_PROOF,
    Holder,
    LockError,
    LockRefused,
    LockRequest,
    LockSettingsError,
    LockUnavailable,
)
from tandemmq.locker.kubernetes.api import Lease, LeaseApi, micro_time, new_lease
from tandemmq.locker.leased import NAMESAKE_RENEWALS, LeasedLocker
from tandemmq.locker.options import Options

logger = logging.getLogger(__name__)

#: Polls of a standby in the length of a lease, and the longest pause between two polls: few, to spare the API server.
POLLS_PER_LEASE: Final = 10
POLL_SECONDS_MAX: Final = 1.0
#: Limit of each of the two calls of a release; after that, the lease expires.
RELEASE_SECONDS_MAX: Final = 1.0
#: Limit of the writes in one renewal; a write is repeated after a conflict.
WRITES_MAX: Final = 3
NONCE_BITS: Final = 48

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
REQUEST_MS: Final = 2_000.0


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Values of `[locker.kubernetes]`. The default of a value comes from the environment of the pod."""

    server: str
    namespace: str
    lease: str
    token_file: str
    ca_file: str
    request_seconds: float

    @classmethod
    def of(cls, request: LockRequest, environment: Mapping[str, str] = os.environ) -> KubernetesSettings:
        """Read the settings of a request. Raises LockSettingsError."""
        options = Options(request.options, "kubernetes")
        token_file = options.text("token_file") or f"{ACCOUNT}/token"
        settings = cls(
            server=options.text("server") or _own_server(environment),
            namespace=options.text("namespace") or _own_namespace(os.path.dirname(token_file)),
            lease=options.text("lease") or "tandemmq",
            token_file=token_file,
            ca_file=options.text("ca_file") or f"{ACCOUNT}/ca.crt",
            request_seconds=options.number("request_timeout", REQUEST_MS) / 1000,
        )
        options.end()
        if not settings.server.startswith("https://"):
            raise LockSettingsError("kubernetes.server", settings.server, "https://HOST:PORT")
        return settings


def _own_server(environment: Mapping[str, str]) -> str:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise LockSettingsError("kubernetes.server", None, "https://HOST:PORT, because this is no pod of Kubernetes")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _own_namespace(account: str) -> str:
    try:
        with open(os.path.join(account, "namespace"), encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        expected = f"a namespace, because {account}/namespace cannot be read ({error.strerror})"
        raise LockSettingsError("kubernetes.namespace", None, expected) from error


@dataclass(slots=True)
class _Watch:
    """Observation of a Lease by a standby: `since_seconds` is the time by our boot clock since which it is unchanged,
    `renewals` the number of renewals by the same holder."""

    renewal: tuple[object, ...] | None = None
    identity: str = ""
    since_seconds: float = 0.0
    renewals: int = 0

    def see(self, lease: Lease, now_seconds: float) -> None:
        """Note a Lease that was read. `now_seconds` is the time after the read."""
        if lease.renewal == self.renewal:
            return
        self.renewals = self.renewals + 1 if lease.identity == self.identity else 0
        self.renewal, self.identity, self.since_seconds = lease.renewal, lease.identity, now_seconds

    def has_ended(self, lease: Lease, now_seconds: float, usual_seconds: float) -> bool:
        """Return whether this Lease has expired. `usual_seconds` is its length if it states none."""
        length = usual_seconds if lease.duration_seconds is None else lease.duration_seconds
        is_same = lease.renewal == self.renewal
        return is_same and now_seconds - self.since_seconds > length  # prove: kubernetes-lease-stood-unchanged


class KubernetesLeaseLocker(LeasedLocker):
    """Lock in a Lease. It requires a service account that may get, create and update the Lease. The clocks of the hosts
    need not agree."""

    kind = "kubernetes-lease"

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        self._kubernetes = KubernetesSettings.of(request)
        self._api = self._open()
        self._guard = threading.Lock()
        self._reader_api = self._open()  # for `holder` in other threads; under the guard
        self._watch = _Watch()
        self._identity = ""  # of this life; from the first attempt on it may be in the Lease
        self._former_identity = ""  # of a former life, if the release could not remove it from the Lease
        self._lease: Lease | None = None  # as we wrote it last
        self._uid = ""  # of the object that we acquired

    @property
    def where(self) -> str:
        options = self._kubernetes
        return f"the Lease {options.namespace}/{options.lease} at {options.server}"

    @property
    def lease_seconds(self) -> float:
        """Length of the lease in whole seconds, as the API requires."""
        return max(1.0, math.ceil(self.settings.lock_acquire_sleep_interval_seconds))

    @property
    def poll_seconds(self) -> float:
        return min(self.lease_seconds / POLLS_PER_LEASE, POLL_SECONDS_MAX)

    @property
    def call_seconds_max(self) -> float:
        return min(super().call_seconds_max, self._kubernetes.request_seconds)

    # Acquiring

    def try_acquire(self) -> bool:
        if self._is_mine:
            return not self._is_lost
        lease = self._api.read(self._kubernetes.request_seconds)
        if lease is None:
            return self._take(new_lease(self._kubernetes.namespace, self._kubernetes.lease), is_new=True)
        self._watch.see(lease, self.clock.now())
        # The Lease has our own identity if an attempt or a release got no answer.
        is_ours = lease.identity in (self._identity, self._former_identity)
        if is_ours or not lease.identity or self._watch.has_ended(lease, self.clock.now(), self.lease_seconds):
            return self._take(lease, is_new=False)
        self._wait_behind(lease)
        return False

    def _take(self, found: Lease, *, is_new: bool) -> bool:
        if not self._identity:
            nonce = f"{self.request.random.getrandbits(NONCE_BITS):0{NONCE_BITS // 4}x}"
            self._identity = f"{self.request.holder.name}_{nonce}"
        known_at, wall = self.clock.now(), time.time()
        holder = replace(self.request.holder, epoch=None, since_ms=round(wall * 1000))
        changes = 0 if is_new else found.transitions + (found.identity != self._identity)
        wanted = found.changed(
            encode(holder, self._identity),
            holderIdentity=self._identity,
            leaseDurationSeconds=int(self.lease_seconds),
            acquireTime=micro_time(wall),
            renewTime=micro_time(wall),
            leaseTransitions=changes,
        )
        write = self._api.create if is_new else self._api.replace
        written = write(wanted, self._kubernetes.request_seconds)
        if written is None:
            return False
        self._lease, self._uid = written, written.uid
        self._holder, self._is_mine, self._is_lost = holder, True, False
        self._proof = self._proof_since(known_at)  # prove: kubernetes-taken-before "known_at" -> "self.clock.now()"
        return True

    def _wait_behind(self, lease: Lease) -> None:
        """Note that another broker holds the Lease. Raises LockRefused if that is a live broker with this broker's
        name."""
        holder = holder_in(lease)
        is_namesake = holder is not None and holder.name == self.request.holder.name
        self._note_namesake(is_namesake)
        if is_namesake and self._watch.renewals >= NAMESAKE_RENEWALS:
            self._refuse_namesake(holder)

    # Renewing

    def keep_alive(self) -> bool:
        if not self._is_mine or self._is_lost:
            return False
        try:
            known_at = self._renew()
        except LockRefused as refusal:  # the Lease may still be ours: lost rights do not end it
            raise LockUnavailable(str(refusal)) from refusal
        self._is_lost = known_at is None
        self._proof = NO_PROOF if known_at is None else self._proof_since(known_at)
        return not self._is_lost

    def _renew(self) -> float | None:
        """Renew the Lease. Return the time by `clock` from which the new proof counts, or None if the Lease is not
        ours."""
        assert self._holder is not None, "an owner has set its holder entry"
        for _ in range(WRITES_MAX):
            # prove: kubernetes-renews-own " or self._lease.identity != self._identity"
            if self._lease is None or self._lease.identity != self._identity:
                return None
            # prove: kubernetes-renews-what-it-took "self._lease.uid != self._uid" -> "False"
            if self._lease.uid != self._uid:
                return None
            known_at = self.clock.now()
            wanted = self._lease.changed(encode(self._holder, self._identity), renewTime=micro_time(time.time()))
            written = self._api.replace(wanted, self.call_seconds_max)
            if written is not None:
                self._lease = written
                return known_at  # prove: kubernetes-renewed-before "known_at" -> "self.clock.now()"
            self._lease = self._api.read(self.call_seconds_max) or new_lease("", "")
        raise LockUnavailable(f"{self.where} is unavailable: another client keeps changing it")

    def release(self) -> None:
        identity, self._identity = self._identity, ""
        self._forget()
        self._lease = None
        self._watch = _Watch()
        if identity:
            try:
                self._free(identity)
            except LockError as error:
                self._former_identity = identity
                logger.warning("%s is not released, and will expire: %s", self.where, error)
        self._api.close()
        if self._guard.acquire(timeout=RELEASE_SECONDS_MAX):
            self._reader_api.close()
            self._guard.release()

    def _free(self, identity: str) -> None:
        """Free the Lease as client-go does: an empty holder, with a lease of one second."""
        seconds_max = min(self.call_seconds_max, RELEASE_SECONDS_MAX)
        lease = self._api.read(seconds_max)
        if lease is None or lease.identity != identity:
            return
        now = micro_time(time.time())
        self._api.replace(
            lease.changed("", holderIdentity="", leaseDurationSeconds=1, acquireTime=now, renewTime=now), seconds_max
        )

    # Reporting

    def holder(self) -> Holder | None:
        """Return the holder. Any thread."""
        mine = self._mine
        if mine is not None:
            return mine
        with self._guard:
            lease = self._reader_api.read(self._kubernetes.request_seconds)
        if lease is None or self._watch.has_ended(lease, self.clock.now(), self.lease_seconds):
            return None
        return holder_in(lease)

    def _open(self) -> LeaseApi:
        options = self._kubernetes
        return LeaseApi(
            self.where, options.server, options.namespace, options.lease, options.token_file, options.ca_file
        )


def encode(holder: Holder, identity: str) -> str:
    """Return the text of the annotation. The nonce in it is that of `identity`."""
    return json.dumps(holder.line(since=holder.since_ms, nonce=identity.rpartition("_")[2]))


def holder_in(lease: Lease) -> Holder | None:
    """Return the holder of the Lease, or None if the Lease is free. The annotation is ignored if another holder wrote
    it."""
    if not lease.identity:
        return None
    try:
        line = json.loads(lease.holder_line)
        if lease.identity != f"{line['holder']}_{line['nonce']}":
            raise ValueError("written by a former holder")
        return Holder.of_line(line, line["since"])
    except (ValueError, KeyError, TypeError):
        return Holder(lease.identity)
