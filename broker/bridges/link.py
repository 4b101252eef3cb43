"""State that all parts of a bridge share: its name and its figures, and the ways to the engine and to the other
broker."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tandemmq import log_events
from tandemmq.broker.core.commands import ClientError, Command, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.protocols.mqtt.packets import PacketType
from tandemmq.broker.protocols.mqtt.properties import Properties
from tandemmq.store.records.message_ids import broker_producer

log = logging.getLogger(__name__)

#: Largest packet id of messages. Those above it belong to packets that the MQTT library sends by itself (SUBSCRIBE).
PACKET_ID_MAX: Final = 60_000
#: Prefix of advisory topics, which no bridge carries.
ADVISORIES: Final = "ActiveMQ/Advisory/"


def local_client_id(client_id: str) -> str:
    """Return the client id of the durable subscriptions that a bridge, there known as ``client_id``, has here."""
    return f"local.{client_id}"


def user_of(name: str) -> str:
    """Return the user that owns the state of a bridge here."""
    return f"bridge {name}"


def principal_of(name: str) -> Principal:
    """Return the principal of a bridge here."""
    return Principal(user_of(name), may_everything=True)


class Remote(Protocol):
    """A connection to the other broker. Its methods do not raise."""

    def publish(
        self, topic: str, payload: bytes, qos: int, packet_id: int, retain: bool, dup: bool, properties: Properties
    ) -> bool:
        """Publish a message. Return False if there was no room for it, with QoS 0."""

    def acknowledge(self, type: PacketType, packet_id: int) -> None: ...

    def pause(self) -> None:
        """Read nothing more from it."""

    def resume(self) -> None: ...


@dataclass(slots=True)
class Counts:
    """Figures of one bridge, since this process began."""

    received: int = 0  # and durable here, if they are persistent
    sent: int = 0  # and confirmed by the other broker, with QoS 1 and 2
    refused: int = 0  # by either side for good
    dropped: int = 0  # of QoS 0, because there was no room
    circled: int = 0  # had passed this bridge before, or too many bridges


class Link:
    """``message_ids`` begins the ids of its messages, and is used once. ``handle`` carries out a command, ``hang_up``
    ends all. On the loop."""

    def __init__(
        self,
        name: str,
        message_ids: str,
        counts: Counts,
        clock: Callable[[], int],
        *,
        handle: Callable[[Command], None],
        hang_up: Callable[[], None],
    ) -> None:
        self.name = name
        self.counts = counts
        self.clock = clock
        self.id = ""  # unique among the bridges of all brokers; known before the first message
        self.remote: Remote | None = None
        self.has_ended = False
        self._handle = handle
        self._hang_up = hang_up
        self._prefix = f"{broker_producer(message_ids)}:"
        self._sequence = itertools.count(1)
        self._transactions = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._queued: deque[Command] = deque()
        self._is_called = False
        self._refusal: ClientError | None = None  # of a command in a transaction
        self._told_of_circle = False

    # ---- to the engine

    def later(self, *commands: Command) -> None:
        """Have commands carried out soon, in this order: the engine calls back while it carries out other commands."""
        self._queued.extend(commands)
        if not self._is_called and self._queued:
            self._is_called = True
            self._loop.call_soon(self._carry_out)

    def _carry_out(self) -> None:
        self._is_called = False
        while self._queued and not self.has_ended:
            self._handle(self._queued.popleft())

    def next_message_id(self) -> str:
        return f"{self._prefix}{next(self._sequence)}"

    def next_transaction(self) -> str:
        return str(next(self._transactions))

    def refused(self, error: ClientError) -> None:
        """Keep the error of a command in a transaction: the later rollback of the transaction does not name it."""
        if error.kind is not ErrorKind.ROLLED_BACK:
            self._refusal = error

    def reason_of(self, error: ClientError) -> ClientError:
        """Return the reason of a rollback, if ``error`` says that a transaction was rolled back, and else ``error``."""
        if error.kind is ErrorKind.ROLLED_BACK and self._refusal is not None:
            error, self._refusal = self._refusal, None
        return error

    def circled(self, topic: str) -> None:
        """Count a message that is not sent on, because it has passed this bridge before, or too many bridges."""
        self.counts.circled += 1
        if not self._told_of_circle:
            self._told_of_circle = True
            log.warning(
                "bridge %s: a message to %s came here over bridges in a circle, and is not sent on; others are counted",
                self.name, topic, extra=log_events.BRIDGE_CIRCLE,
            )  # fmt: skip

    def give_up(self, error: ClientError) -> None:
        """Restart the bridge: its own records cannot be kept."""
        if not self.has_ended:
            text = self.reason_of(error).message
            log.warning("bridge %s: %s", self.name, text, extra=log_events.BRIDGE_FAILED)
            self._hang_up()

    def end(self) -> None:
        """End: nothing more is done."""
        self.has_ended = True
        self.remote = None
        self._queued.clear()

    # ---- to the other broker

    def answer(self, type: PacketType, packet_id: int) -> None:
        """Send PUBACK, PUBREC, PUBREL or PUBCOMP, if there is a connection."""
        if self.remote is not None:
            self.remote.acknowledge(type, packet_id)
