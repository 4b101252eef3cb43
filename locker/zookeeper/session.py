"""Session with ZooKeeper, with the client library kazoo. Each call has a time limit, and raises the errors of a lock.

kazoo connects and reconnects in its own threads. So neither a start nor a stop of the broker hangs if no server
answers. A call that timed out may still take effect later.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tandemmq.locker.contract import Clock, Event, LockRefused, LockSettingsError, LockUnavailable, UnknownLocker

if TYPE_CHECKING:
    from kazoo.client import KazooClient

#: Limit of closing a session. A session that could not be closed ends at the servers after its time-out.
CLOSE_SECONDS_MAX: Final = 1.0
#: Pauses between kazoo's attempts to connect.
RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 0.5
#: Limit of the wait for a connection, except the first one. kazoo continues to reconnect after it.
BACK_SECONDS_MAX: Final = 0.5
#: Least time between two stored requests, as a part of the session's length: 64 requests cover a whole session.
SPACING: Final = 1 / 64
REMEMBERED_MAX: Final = 64

#: Logger that kazoo uses. kazoo warns at every attempt to connect; the locker logs once that no server answers.
logger = logging.getLogger(__name__)
logger.setLevel(logging.ERROR)


class ZooKeeperSession:
    """Session of a client of ZooKeeper, which begins with `connect`. Any thread."""

    def __init__(self, where: str, hosts: str, timeout_seconds: float, digest: str | None, clock: Clock) -> None:
        """Make a session that is not connected yet. `timeout_seconds` is the time-out that we request; the servers may
        grant another one."""
        self._where = where
        self._clock = clock
        self._touches = Touches()
        self._client = _client(hosts, timeout_seconds, digest)
        self._guard = threading.Lock()
        self._live: Event | None = None
        self._lost = threading.Event()
        self._client.add_listener(self._on_state)
        self._requested_seconds = timeout_seconds
        self._negotiated_seconds: float | None = None
        self._hook_connect()

    @property
    def timeout_seconds(self) -> float:
        """Seconds of silence after which the servers end the session and remove its nodes: the value that was granted
        at the last connect, or the requested one."""
        return self._requested_seconds if self._negotiated_seconds is None else self._negotiated_seconds

    @property
    def is_lost(self) -> bool:
        """Return whether the session has ended, with its nodes, or cannot continue. A lost session stays lost."""
        return self._lost.is_set()

    @property
    def number(self) -> int | None:
        """Id of the session at the servers, which is the `ephemeralOwner` of its nodes; None: there is no session
        yet."""
        client_id = self._client.client_id
        return None if client_id is None else int(client_id[0])

    def counted_since(self, reported_at_seconds: float) -> float:
        """Return the time of `Touches.counted_since` for this session."""
        return self._touches.counted_since(reported_at_seconds)

    def connect(self, seconds_max: float) -> None:
        """Wait until there is a connection. Raises LockUnavailable after `seconds_max`, or after BACK_SECONDS_MAX if it
        was called before; kazoo continues to connect."""
        with self._guard:
            if self._live is None:
                self._live = self._client.start_async()
            else:
                seconds_max = min(seconds_max, BACK_SECONDS_MAX)
            live = self._live
        if not live.wait(seconds_max):
            raise LockUnavailable(f"{self._where} is unavailable: no server answered within {seconds_max:g} s")

    def call(self, verb: str, *arguments: object, seconds_max: float, **options: object) -> Any:
        """Call kazoo's `<verb>_async`, and return its result. Raises kazoo's NoNodeError, NodeExistsError and
        BadVersionError, LockRefused if rights are missing, LockUnavailable for all other errors."""
        from kazoo import exceptions
        from kazoo.handlers.threading import KazooTimeoutError

        asked_at = self._clock.now()
        try:
            answer = getattr(self._client, f"{verb}_async")(*arguments, **options).get(timeout=seconds_max)
        except (exceptions.NoNodeError, exceptions.NodeExistsError, exceptions.BadVersionError):
            self._touches.answered(asked_at, self._clock.now(), self.timeout_seconds)
            raise
        except (exceptions.NoAuthError, exceptions.AuthFailedError, exceptions.InvalidACLError) as error:
            raise LockRefused(
                f"{self._where} refuses this broker: {type(error).__name__} at {verb} {arguments[0]}"
            ) from error
        except KazooTimeoutError as error:
            raise LockUnavailable(f"{self._where} is unavailable: no answer within {seconds_max:g} s") from error
        except exceptions.KazooException as error:
            raise LockUnavailable(f"{self._where} is unavailable: {type(error).__name__}") from error
        self._touches.answered(asked_at, self._clock.now(), self.timeout_seconds)
        return answer

    def close(self) -> None:
        """End the session. If a server can be reached, its nodes are removed at once. Never raises; takes about
        CLOSE_SECONDS_MAX at most."""
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
        except Exception:  # kazoo may raise any error here; this client is not used again
            pass

    def _on_state(self, state: str) -> None:
        if state == "LOST":  # KazooState.LOST
            self._lost.set()

    def _hook_connect(self) -> None:
        """Wrap kazoo's connect method, to note each connect and to read the granted time-out. kazoo has no public way
        to read it: the method returns two thirds of it."""
        connection = self._client._connection
        connect: Callable[..., tuple[float, float]] = connection._connect

        def listening(host: str, host_ip: str, port: int) -> tuple[float, float]:
            asked_at = self._clock.now()
            read_timeout_ms, connect_timeout_ms = connect(host, host_ip, port)
            if not self.is_lost:  # otherwise kazoo has begun another session
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


# ---- silence


class Touches:
    """Requests that touched one session: a lower bound, by our own clock, of the time from which ZooKeeper's leader
    counts the silence of the session. Any thread. All times are seconds by the same clock.

        we        --request-->  our server     touches the session at our server, for any request
        leader    --PING----->  our server     every half tick
        leader    <--PING-----  our server     lists the sessions touched since the last PING: the leader touches them
        we        --connect-->  our server     reports the session to the leader, which touches it at once

    (SessionTrackerImpl, LearnerSessionTracker, Learner.ping, LearnerHandler, Leader.lead and revalidateSession of
    apache/zookeeper. A request that our server forwards to the leader, for example a write, does not touch the session
    at the leader: PrepRequestProcessor.checkSession only checks it.) If we are connected to the leader itself, each
    request touches the session there.

    So the leader knows each of our requests that was answered before our server sent its answer to a PING.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._connected_at = -math.inf
        self._answered: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_MAX)

    def connected(self, asked_at_seconds: float) -> None:
        """Note a successful connect that began at this time: the leader has touched the session."""
        with self._guard:
            self._connected_at = max(self._connected_at, asked_at_seconds)

    def answered(self, asked_at_seconds: float, answered_at_seconds: float, session_seconds: float) -> None:
        """Note when a request was sent and when it was answered, with any answer. `session_seconds`: length of the
        session."""
        with self._guard:
            if not self._answered or asked_at_seconds - self._answered[-1][0] >= session_seconds * SPACING:
                self._answered.append((asked_at_seconds, answered_at_seconds))

    def counted_since(self, reported_at_seconds: float) -> float:
        """Return a lower bound of the time from which the leader counts, if our server has sent an answer to a PING at
        `reported_at_seconds` or later. Minus infinity: nothing is known."""
        with self._guard:
            reported = (
                asked_at
                for asked_at, answered_at in self._answered
                if answered_at <= reported_at_seconds  # prove: answered-before-told "answered_at" -> "asked_at"
            )
            return max(self._connected_at, *reported, -math.inf)
