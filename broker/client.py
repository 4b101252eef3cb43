"""A blocking client for a pair of brokers: stomp.py underneath, failover and resending on top.

    with Client("failover:(stomp://a:61613,stomp://b:61613)") as client:
        client.send("/queue/orders", b"one")      # returns while fewer than `window` wait for their receipt
        client.flush()                            # returns when every message has its receipt: it is safe
        client.subscribe("/queue/orders")
        message = client.receive(timeout_seconds=5)
        client.acknowledge(message)

Promises: a message is forgotten only when its receipt came; what had none when a connection was lost is sent
again, in order, on the next one. Each message has a number of this Client's own (docs/duplicates.md), by which TandemMQ
knows what it had stored before: it stores it once. At another broker a message may arrive twice; never not at all.

One thread uses a Client. It reconnects inside the call that notices the loss, so that no thread of ours goes
on when the program stops calling. stomp.py's reading thread only notes what came.
"""

import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import stomp
from stomp.exception import StompException
from stomp.utils import Frame

from broker.failover import UNLIMITED, Address, FailoverUrl, UrlError
from broker.protocols.stomp.messages import SEND_ID
from broker.protocols.stomp.session import SERVER

__all__ = ["Address", "BrokerError", "Client", "ClientError", "FailoverUrl", "NoBroker", "Received", "UrlError"]

WINDOW_DEFAULT = 100
PREFETCH_DEFAULT = 100
CONNECT_TIMEOUT_SECONDS = 5.0
# Heart-beats notice a machine that is gone without closing its connections, within one and a half of these.
HEARTBEAT_MS = 10_000
CLOSE_TIMEOUT_SECONDS = 5.0
# A person who waits is told again that nobody answers, but not at each attempt.
NOTICE_SECONDS = 10.0
# stomp.py clears its socket in the reading thread; a call that runs into that moment meets None.
_LOST = (OSError, StompException, AttributeError)


class ClientError(Exception):
    """What this module raises."""


class NoBroker(ClientError):
    """Nobody answered within the limits of the URL; messages without a receipt may or may not be stored."""


class BrokerError(ClientError):
    """The broker refused something; the message is what its ERROR frame says."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it came. ``headers`` are unescaped; ``connection`` says on which connection it came."""

    body: bytes
    headers: Mapping[str, str]
    connection: int

    @property
    def text(self) -> str:
        """The body as UTF-8; bytes that are none are replaced."""
        return self.body.decode("utf-8", errors="replace")


@dataclass(slots=True)
class _Outgoing:
    destination: str
    body: bytes
    headers: dict[str, str]
    send_id: str


@dataclass(slots=True)
class _Link:
    """One connection of stomp.py and what came on it. Guarded by the client's condition."""

    number: int
    stomp: Any
    is_connected: bool = False
    is_lost: bool = False
    is_confirmed: bool = False
    is_tandemmq: bool = False
    refusal: str | None = None

    @property
    def farewell(self) -> str:
        """The receipt of DISCONNECT: everything before it was processed."""
        return f"close-{self.number}"


class _Listener(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """Notes what came on one link; runs in stomp.py's reading thread."""

    def __init__(self, client: "Client", link: _Link) -> None:
        self._client = client
        self._link = link

    def on_connected(self, frame: Frame) -> None:
        with self._client._changed:
            self._link.is_connected = True
            self._link.is_tandemmq = frame.headers.get("server", "").startswith(SERVER)
            self._client._changed.notify_all()

    def on_disconnected(self) -> None:
        with self._client._changed:
            self._link.is_lost = True
            self._client._changed.notify_all()

    def on_receipt(self, frame: Frame) -> None:
        receipt = frame.headers["receipt-id"]
        with self._client._changed:
            self._client._unconfirmed.pop(receipt, None)
            if receipt == self._link.farewell:
                self._link.is_confirmed = True
            self._client._changed.notify_all()

    def on_message(self, frame: Frame) -> None:
        with self._client._changed:
            if self._client._link is self._link:  # a former connection's come again on this one
                self._client._inbox.append(Received(frame.body or b"", frame.headers, self._link.number))
            self._client._changed.notify_all()

    def on_error(self, frame: Frame) -> None:
        body = (frame.body or b"").decode(errors="replace").strip()
        text = frame.headers.get("message") or (body.splitlines()[0] if body else "no reason given")
        with self._client._changed:
            self._link.refusal = text
            # A refused message was answered: sending it again would be refused again.
            self._client._unconfirmed.pop(frame.headers.get("receipt-id", ""), None)
            self._client._changed.notify_all()


class Client:
    """A connection to whichever of the brokers is master. ``notice`` is told in words what happens to it."""

    def __init__(
        self,
        url: FailoverUrl | str,
        *,
        login: str | None = None,
        passcode: str | None = None,
        client_id: str | None = None,
        window: int = WINDOW_DEFAULT,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        if window < 1:
            raise ValueError(f"window: {window} is not at least 1")
        self.url = FailoverUrl.parse(url) if isinstance(url, str) else url
        self.resent = 0
        self._login = login
        self._passcode = passcode
        self._client_id = client_id
        self._window = window
        self._notice = notice
        self._changed = threading.Condition()
        self._link: _Link | None = None
        self._address = self.url.addresses[0]
        self._links = 0
        # Never used by another: a producer's name with an old number is a message that was sent before.
        self._producer = f"client-{uuid.uuid4().hex}"
        self._receipt = 0
        self._unconfirmed: dict[str, _Outgoing] = {}
        self._subscriptions: dict[str, dict[str, str]] = {}
        self._inbox: deque[Received] = deque()
        self._has_unsure_acknowledgements = False

    @property
    def unconfirmed(self) -> int:
        """How many messages were sent and have no receipt yet."""
        return len(self._unconfirmed)

    def connect(self) -> Address:
        """Connect now rather than at the first call; returns the broker that answered."""
        return self._connected_link()[1]

    def send(self, destination: str, body: bytes | str, headers: Mapping[str, str] | None = None) -> None:
        """Send one persistent message; returns when at most ``window`` messages wait for a receipt.

        Returning does not mean stored: flush() does. With a header ``tandemmq-send-id`` of the caller's own the message
        is stored once even if another Client sends it again.
        """
        self._await(lambda: len(self._unconfirmed) < self._window, None)
        self._receipt += 1
        receipt = f"m-{self._receipt}"
        message = _Outgoing(
            destination,
            body.encode() if isinstance(body, str) else body,
            {"persistent": "true", **(headers or {})},
            f"{self._producer}:{self._receipt}",
        )
        link, _ = self._connected_link()
        with self._changed:
            self._unconfirmed[receipt] = message
        try:
            _transmit(link, receipt, message)
        except _LOST:
            self._lost(link)  # the next call that waits sends it again

    def flush(self) -> None:
        """Returns when every message sent has its receipt; reconnects and resends as often as it takes."""
        self._await(lambda: not self._unconfirmed, None)

    def subscribe(
        self,
        destination: str,
        acknowledgement: str = "client-individual",
        headers: Mapping[str, str] | None = None,
        prefetch: int = PREFETCH_DEFAULT,
    ) -> None:
        """Receive from a destination, on this connection and on those after a failover.

        At most ``prefetch`` messages wait here unacknowledged. ``auto`` is not offered: it would lose what
        waits here when a connection is lost.
        """
        if acknowledgement not in ("client-individual", "client"):
            raise ValueError(f"acknowledgement: {acknowledgement!r} is neither client-individual nor client")
        link, _ = self._connected_link()
        identity = str(len(self._subscriptions) + 1)
        subscription = {
            "destination": destination,
            "id": identity,
            "ack": acknowledgement,
            "activemq.prefetchSize": str(prefetch),
            "prefetch-count": str(prefetch),
            **(headers or {}),
        }
        self._subscriptions[identity] = subscription
        try:
            link.stomp.send_frame("SUBSCRIBE", dict(subscription))
        except _LOST:
            self._lost(link)

    def receive(self, timeout_seconds: float | None = None) -> Received | None:
        """The next message, or None when none came in time; NoBroker when there was none to give it.

        What came on a connection that is lost by now is not returned: it will come again.
        """
        self._await(lambda: bool(self._inbox) and self._link is not None and not self._link.is_lost, timeout_seconds)
        with self._changed:
            return self._inbox.popleft() if self._inbox else None

    def acknowledge(self, message: Received) -> bool:
        """Say that a message is dealt with; False when its connection is gone, and the message will come again."""
        link = self._link
        if link is None or link.number != message.connection or link.is_lost:
            return False
        try:
            link.stomp.send_frame("ACK", {"id": message.headers["ack"]})
        except _LOST:
            self._lost(link)
            return False
        self._has_unsure_acknowledgements = True
        return True

    def close(self) -> bool:
        """Leave in order; True when the broker confirmed everything sent before, acknowledgements too."""
        link, self._link = self._link, None
        if link is None or link.is_lost:
            return not self._has_unsure_acknowledgements
        try:
            # Not stomp.py's disconnect(): that waits without a limit for a broker that does not answer.
            link.stomp.send_frame("DISCONNECT", {"receipt": link.farewell})
        except _LOST:
            return not self._has_unsure_acknowledgements
        with self._changed:
            self._changed.wait_for(lambda: link.is_confirmed or link.is_lost, CLOSE_TIMEOUT_SECONDS)
        _drop(link)
        return link.is_confirmed or not self._has_unsure_acknowledgements

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await(self, condition: Callable[[], bool], timeout_seconds: float | None) -> None:
        """Wait until the condition holds or time is up, reconnecting whenever the link is lost."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            self._raise_refusal()
            if condition():
                return
            if until is not None and time.monotonic() >= until:
                return
            link, _ = self._connected_link(until)
            with self._changed:
                left = None if until is None else max(0.0, until - time.monotonic())
                self._changed.wait_for(lambda link=link: condition() or link.is_lost or link.refusal, left)  # type: ignore[misc]

    def _raise_refusal(self) -> None:
        link = self._link
        if link is not None and link.refusal is not None:
            refusal, link.refusal = link.refusal, None
            raise BrokerError(refusal)

    def _lost(self, link: _Link) -> None:
        with self._changed:
            link.is_lost = True
        _drop(link)

    def _connected_link(self, until: float | None = None) -> tuple[_Link, Address]:
        """The living link, after reconnecting, subscribing and resending if need be; NoBroker at ``until``."""
        self._raise_refusal()
        if self._link is not None and not self._link.is_lost:
            return self._link, self._address
        was_connected = self._link is not None
        if self._link is not None:
            _drop(self._link)
            self._notice(f"connection to {self._address} lost")
            self._link = None
        with self._changed:
            self._inbox.clear()  # the broker delivers them again
        while True:
            link = self._seek(until)
            self._link = link
            with self._changed:
                waiting = list(self._unconfirmed.items())
            again = f", sending again what has no receipt: {len(waiting)}" if waiting else ""
            self._notice(f"{'re' if was_connected else ''}connected to {self._address}{again}")
            try:
                for subscription in self._subscriptions.values():
                    link.stomp.send_frame("SUBSCRIBE", dict(subscription))
                for receipt, message in waiting:
                    _transmit(link, receipt, message)
                self.resent += len(waiting)
                return link, self._address
            except _LOST:
                self._lost(link)
                self._notice(f"connection to {self._address} lost")
                was_connected = True

    def _seek(self, until: float | None) -> _Link:
        """Try the addresses, round after round, until one answers or the URL's patience ends."""
        url = self.url
        started_at = noticed_at = time.monotonic()
        is_noticed = False
        problems: dict[Address, str] = {}
        delays = url.delays_seconds()
        while True:
            order = list(url.addresses)
            if url.randomize:
                random.shuffle(order)
            for address in order:
                try:
                    link = self._try(address)
                    self._address = address
                    return link
                except NoBroker as problem:
                    problems[address] = str(problem)
            delay = next(delays, None)
            waited = time.monotonic() - started_at
            is_over = until is not None and time.monotonic() >= until
            is_over = is_over or (url.timeout_ms != UNLIMITED and waited * 1000 >= url.timeout_ms)
            named = "; ".join(f"{address}: {problem}" for address, problem in problems.items())
            if delay is None or is_over:
                raise NoBroker(f"no broker reachable ({named})")
            if not is_noticed or time.monotonic() - noticed_at >= NOTICE_SECONDS:
                self._notice(f"no broker reachable ({named}), trying again")
                is_noticed, noticed_at = True, time.monotonic()
            if url.timeout_ms != UNLIMITED:
                delay = min(delay, max(0.0, url.timeout_ms / 1000 - waited))
            if until is not None:
                delay = min(delay, max(0.0, until - time.monotonic()))
            time.sleep(delay)

    def _try(self, address: Address) -> _Link:
        """One attempt at one broker; raises NoBroker with the reason, BrokerError when we are not let in."""
        self._links += 1
        connection = stomp.Connection12(
            [(address.host, address.port)],
            prefer_localhost=False,
            try_loopback_connect=False,
            reconnect_attempts_max=1,
            reconnect_sleep_initial=0.0,
            timeout=CONNECT_TIMEOUT_SECONDS,
            heartbeats=(HEARTBEAT_MS, HEARTBEAT_MS),
            auto_decode=False,
            auto_content_length=False,
        )
        link = _Link(self._links, connection)
        connection.set_listener("client", _Listener(self, link))
        headers = {"client-id": self._client_id} if self._client_id else None
        try:
            connection.connect(self._login, self._passcode, headers=headers)
        except (*_LOST, TypeError) as problem:  # TypeError: lost between the connection and the first frame
            _drop(link)
            raise NoBroker(_reason(problem)) from problem
        with self._changed:
            self._changed.wait_for(
                lambda: link.is_connected or link.is_lost or link.refusal is not None, CONNECT_TIMEOUT_SECONDS
            )
        if link.refusal is not None:
            _drop(link)
            raise BrokerError(f"{address} refused the connection: {link.refusal}")
        if link.is_lost or not link.is_connected:
            _drop(link)
            raise NoBroker("connection closed" if link.is_lost else "no answer")
        return link


def _transmit(link: _Link, receipt: str, message: _Outgoing) -> None:
    headers = {**message.headers, "destination": message.destination, "receipt": receipt}
    if link.is_tandemmq:  # others would keep it as a property, and a bridge would carry it on
        headers.setdefault(SEND_ID, message.send_id)
    if b"\0" in message.body or not _is_text(message.body):
        headers["content-length"] = str(len(message.body))  # without one, brokers take it for a text message
    link.stomp.send_frame("SEND", headers, message.body)


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _drop(link: _Link) -> None:
    try:
        link.stomp.transport.disconnect_socket()
    except _LOST:
        pass  # it is gone already


def _reason(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return "connection refused" if type(problem).__name__ == "ConnectFailedException" else type(problem).__name__
