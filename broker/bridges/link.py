"""State that all parts of a bridge share: its name and its figures, the ways to the engine and to the other broker, its
topics with their names on the other side, and the bridges that a message has passed.

The bridges that a message has passed are a user property, which MQTT 5 carries from broker to broker. A message that
comes to a bridge again goes no further, and so a circle of bridges ends.

    MQTT.Bridges: 6f1d0c52a9be 03b7e1f4c8d2        ids of bridges, the first one first
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Protocol

from tandemmq import log_events
from tandemmq.broker.core.commands import ClientError, Command, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.protocols.mqtt.packets import PacketType
from tandemmq.broker.protocols.mqtt.properties import Properties
from tandemmq.broker.protocols.mqtt.topics import matches
from tandemmq.store.records.message_ids import broker_producer

log = logging.getLogger(__name__)

#: Largest packet id of messages. Those above it belong to packets that the MQTT library sends by itself (SUBSCRIBE).
PACKET_ID_MAX: Final = 60_000
#: Prefix of advisory topics, which no bridge carries.
ADVISORIES: Final = "ActiveMQ/Advisory/"
#: User property with the ids of the bridges that a message has passed.
PASSED: Final = "MQTT.Bridges"
#: A message that has passed this many bridges goes no further.
PASSED_MAX: Final = 32


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


@dataclass(frozen=True)
class Topic:
    """Entry of a bridge's ``topics`` (config.bridges): ``<local_prefix><pattern>`` here is
    ``<remote_prefix><pattern>`` there."""

    pattern: str
    qos: int
    local_prefix: str
    remote_prefix: str
    is_in: bool
    is_out: bool

    @cached_property
    def local(self) -> str:
        """Topic filter here."""
        return self.local_prefix + self.pattern

    @cached_property
    def remote(self) -> str:
        """Topic filter there."""
        return self.remote_prefix + self.pattern

    def remote_name(self, topic: str) -> str:
        """Return the name there of a topic here, which the filter matches."""
        return self.remote_prefix + topic[len(self.local_prefix) :]

    def local_name(self, topic: str) -> str:
        """Return the name here of a topic there, which the filter matches."""
        return self.local_prefix + topic[len(self.remote_prefix) :]


def of_remote(topics: Sequence[Topic], topic: str) -> Topic | None:
    """Return the entry for an incoming topic; None: there is none. No two match the same topic (config.bridges)."""
    return next((each for each in topics if each.is_in and matches(each.remote, topic)), None)


def is_at_end(text: object, id: str) -> bool:
    """Return whether a message with that property, if any, has passed the bridge ``id`` before, or too many."""
    ids = text.split() if isinstance(text, str) else ()
    return id in ids or len(ids) >= PASSED_MAX


def passed(properties: Properties) -> str:
    """Return the property; "": there is none."""
    return next((value for name, value in properties.user if name == PASSED), "")


def passing(properties: Properties, id: str) -> Properties:
    """Return the properties with the bridge ``id`` added."""
    others = tuple(each for each in properties.user if each[0] != PASSED)
    return replace(properties, user=(*others, (PASSED, f"{passed(properties)} {id}".lstrip())))
