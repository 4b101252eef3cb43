"""A session with ZooKeeper, by kazoo: every call is bounded, and fails like a call of a lock.

kazoo connects, and connects anew, on threads of its own. No caller waits for it longer than its bound: neither a start
nor a stop hangs on a server that does not answer. A call that timed out may still take effect later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tandemmq.locker.contract import Clock, Event, LockRefused, LockSettingsError, LockUnavailable, UnknownLocker
from tandemmq.locker.zookeeper.touches import Touches

if TYPE_CHECKING:
    from kazoo.client import KazooClient

#: A session that cannot be closed in this time ends by itself, a lease later.
CLOSE_SECONDS_MAX: Final = 1.0
#: Pauses between kazoo's attempts to connect.
RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 0.5
#: Limit of the wait for the servers to come back after the first wait: kazoo continues to try anyway.
BACK_SECONDS_MAX: Final = 0.5

#: The logger of kazoo. kazoo warns at every attempt to connect; we report once that the servers do not answer.
logger = logging.getLogger(__name__)
logger.setLevel(logging.ERROR)


class ZooKeeperSession:
    """Client of ZooKeeper. Any thread may call it; nothing happens before `connect`."""

    def __init__(self, where: str, hosts: str, timeout_seconds: float, digest: str | None, clock: Clock) -> None:
        """Make the client. `timeout_seconds` is our request; the servers have limits of their own, see
        `timeout_seconds`."""
        self._where = where
        self._clock = clock
        self._touches = Touches()
        self._client = _client(hosts, timeout_seconds, digest)
        self._guard = threading.Lock()
        self._live: Event | None = None
        self._lost = threading.Event()
        self._client.add_listener(self._hear)
        self._asked_seconds = timeout_seconds
        self._negotiated_seconds: float | None = None
        self._listen_in()

    @property
    def timeout_seconds(self) -> float:
        """Seconds of silence after which the servers end the session and remove its nodes: as agreed at the last
        connect."""
        return self._asked_seconds if self._negotiated_seconds is None else self._negotiated_seconds

    @property
    def is_lost(self) -> bool:
        """Return whether the session ended, and its nodes with it, or cannot continue. It does not come back."""
        return self._lost.is_set()

    @property
    def number(self) -> int | None:
        """Number by which the servers name the session as the owner of its nodes; None: there is no session yet."""
        client_id = self._client.client_id
        return None if client_id is None else int(client_id[0])

    def counted_since(self, told_at_seconds: float) -> float:
        """Return the time since which the leader counts (locker.zookeeper.touches), by the clock of this session."""
        return self._touches.counted_since(told_at_seconds)

    def connect(self, seconds_max: float) -> None:
        """Wait until there is a connection. Raises LockUnavailable after `seconds_max`, sooner when there was a
        connection or a wait before; kazoo continues to try."""
        with self._guard:
            if self._live is None:
                self._live = self._client.start_async()
            else:
                seconds_max = min(seconds_max, BACK_SECONDS_MAX)
            live = self._live
        if not live.wait(seconds_max):
            raise LockUnavailable(f"{self._where} is unavailable: no server answered within {seconds_max:g} s")

    def call(self, verb: str, *arguments: object, seconds_max: float, **options: object) -> Any:
        """Call kazoo's `<verb>_async`, and wait for its result. NoNode, NodeExists and BadVersion are answers, and
        raised as kazoo's; any other error is LockUnavailable, or LockRefused for missing rights."""
        from kazoo import exceptions
        from kazoo.handlers.threading import KazooTimeoutError

        asked_at = self._clock.now()
        try:
            answer = getattr(self._client, f"{verb}_async")(*arguments, **options).get(timeout=seconds_max)
        except (exceptions.NoNodeError, exceptions.NodeExistsError, exceptions.BadVersionError):
            self._touches.answered(asked_at, self._clock.now(), self.timeout_seconds)
            raise
        except (exceptions.NoAuthError, exceptions.AuthFailedError, exceptions.InvalidACLError) as error:
            raise LockRefused(f"{self._where} refuses us: {type(error).__name__} at {verb} {arguments[0]}") from error
        except KazooTimeoutError as error:
            raise LockUnavailable(f"{self._where} is unavailable: no answer within {seconds_max:g} s") from error
        except exceptions.KazooException as error:
            raise LockUnavailable(f"{self._where} is unavailable: {type(error).__name__}") from error
        self._touches.answered(asked_at, self._clock.now(), self.timeout_seconds)
        return answer

    def close(self) -> None:
        """End the session, and with it all its nodes, at once if a server can be reached. Never raises."""
        with self._guard:
            if self._live is None:
                return
        closing = threading.Thread(target=self._stop, name="tandemmq-zookeeper-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS_MAX)

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception:  # any error of kazoo at its end: this client is not used again
            pass

    def _hear(self, state: str) -> None:
        if state == "LOST":  # KazooState.LOST
            self._lost.set()

    def _listen_in(self) -> None:
        """Read the agreed time-out from kazoo, which keeps only two thirds of it, for its connection's own use."""
        connection = self._client._connection
        connect: Callable[..., tuple[float, float]] = connection._connect

        def listening(host: str, host_ip: str, port: int) -> tuple[float, float]:
            asked_at = self._clock.now()
            read_timeout_ms, connect_timeout_ms = connect(host, host_ip, port)
            if not self.is_lost:  # otherwise kazoo has begun another session, which shows nothing about this one
                self._touches.connected(asked_at)
            self._negotiated_seconds = read_timeout_ms * 1.5 / 1000
            return read_timeout_ms, connect_timeout_ms

        connection._connect = listening


def _client(hosts: str, timeout_seconds: float, digest: str | None) -> KazooClient:
    try:
        from kazoo.client import KazooClient
        from kazoo.exceptions import ConfigurationError
        from kazoo.retry import KazooRetry
        from kazoo.security import make_digest_acl
    except ImportError as error:
        raise UnknownLocker(f"ZooKeeper needs kazoo: pip install 'tandemmq[zookeeper]' ({error})") from error
    rights: dict[str, Any] = {}
    if digest is not None:
        rights["auth_data"] = [("digest", digest)]
        rights["default_acl"] = [make_digest_acl(*digest.split(":", 1), all=True)]
    try:
        return KazooClient(
            hosts,
            timeout=timeout_seconds,
            logger=logger,
            connection_retry=KazooRetry(max_tries=-1, delay=RETRY_SECONDS_MIN, max_delay=RETRY_SECONDS_MAX),
            **rights,
        )
    except (ConfigurationError, ValueError) as error:
        raise LockSettingsError("zookeeper.hosts", hosts, "HOST:PORT,HOST:PORT,…") from error
