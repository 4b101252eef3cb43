"""State that all parts of a bridge share: its name and figures, the interfaces to the engine and to the other broker,
its topics with their names at the other broker, and the ids of the bridges that a message has passed.

A user property contains the ids of the bridges that a message has passed; MQTT 5 carries it from broker to broker. A
bridge does not forward a message that has passed it before. So a message does not circulate in a circle of bridges.

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

#: Largest packet id of messages. The MQTT library uses the larger ids for its own packets (SUBSCRIBE).
PACKET_ID_MAX: Final = 60_000
#: Prefix of advisory topics, which bridges do not forward.
ADVISORIES: Final = "ActiveMQ/Advisory/"
#: User property with the ids of the bridges that a message has passed.
PASSED: Final = "MQTT.Bridges"
#: A message that has passed this many bridges is not forwarded.
PASSED_MAX: Final = 32


def local_client_id(client_id: str) -> str:
    """Return the client id of a bridge's durable subscriptions here. ``client_id``: its client id at the other
    broker."""
    return f"local.{client_id}"


def user_of(name: str) -> str:
    """Return the user that owns the queue and the subscriptions of a bridge here."""
    return f"bridge {name}"


def principal_of(name: str) -> Principal:
    """Return the principal of a bridge here."""
    return Principal(user_of(name), may_everything=True)


class Remote(Protocol):
    """A connection to the other broker. Its methods do not raise."""

    def publish(
        self, topic: str, payload: bytes, qos: int, packet_id: int, retain: bool, dup: bool, properties: Properties
    ) -> bool:
        """Publish a message. Return False if too many packets wait and a message of QoS 0 was dropped."""

    def acknowledge(self, type: PacketType, packet_id: int) -> None: ...

    def pause(self) -> None:
        """Stop reading from the other broker."""

    def resume(self) -> None: ...


@dataclass(slots=True)
class Counts:
    """Figures of one bridge since the start of this process."""

    received: int = 0  # received, and durable here if persistent
    sent: int = 0  # sent, and with QoS 1 and 2 confirmed by the other broker
    refused: int = 0  # finally refused, here or by the other broker
    dropped: int = 0  # with QoS 0, because too many packets waited or there was no connection
    circled: int = 0  # not forwarded: had passed this bridge before, or too many bridges


class Link:
    """Shared state of the parts of a bridge. ``message_ids``: prefix of the ids of its messages, used by only one link.
    ``handle`` carries out a command; ``hang_up`` ends the flow. Runs on the loop."""

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
        self._has_logged_circle = False

    # ---- to the engine

    def later(self, *commands: Command) -> None:
        """Carry out commands soon, in this order. They cannot be carried out at once, because the engine calls this
        while it carries out other commands."""
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
        """Store the refusal of a command in a transaction. The later error ROLLED_BACK does not contain the reason."""
        if error.kind is not ErrorKind.ROLLED_BACK:
            self._refusal = error

    def reason_of(self, error: ClientError) -> ClientError:
        """Return the stored refusal if ``error`` is ROLLED_BACK, otherwise ``error``."""
        if error.kind is ErrorKind.ROLLED_BACK and self._refusal is not None:
            error, self._refusal = self._refusal, None
        return error

    def note_circle(self, topic: str) -> None:
        """Count, and once log, a message that is not forwarded because it has passed this bridge before, or too many
        bridges."""
        self.counts.circled += 1
        if not self._has_logged_circle:
            self._has_logged_circle = True
            log.warning(
                "bridge %s: a message to %s returned through a circle of bridges and is not forwarded; further "
                "ones are only counted",
                self.name, topic, extra=log_events.BRIDGE_CIRCLE,
            )  # fmt: skip

    def give_up(self, error: ClientError) -> None:
        """Restart the bridge: its records cannot be stored."""
        if not self.has_ended:
            text = self.reason_of(error).message
            log.warning("bridge %s: %s", self.name, text, extra=log_events.BRIDGE_FAILED)
            self._hang_up()

    def end(self) -> None:
        """End: carry out no more commands."""
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
    """Entry of a bridge's ``topics`` (config.bridges): ``<local_prefix><pattern>`` here is ``<remote_prefix><pattern>``
    at the other broker."""

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
        """Topic filter at the other broker."""
        return self.remote_prefix + self.pattern

    def remote_name(self, topic: str) -> str:
        """Return the name at the other broker for a local topic that matches the filter."""
        return self.remote_prefix + topic[len(self.local_prefix) :]

    def local_name(self, topic: str) -> str:
        """Return the local name for a topic of the other broker that matches the filter."""
        return self.local_prefix + topic[len(self.remote_prefix) :]


def topic_of_remote(topics: Sequence[Topic], topic: str) -> Topic | None:
    """Return the entry for an incoming topic; None: no entry matches. At most one entry matches a topic
    (config.bridges)."""
    return next((each for each in topics if each.is_in and matches(each.remote, topic)), None)


def must_stop(text: object, id: str) -> bool:
    """Return whether a message must not be forwarded: it has passed the bridge ``id`` before, or too many bridges.
    ``text``: value of its property PASSED, if any."""
    ids = text.split() if isinstance(text, str) else ()
    return id in ids or len(ids) >= PASSED_MAX


def passed_bridges(properties: Properties) -> str:
    """Return the value of the property PASSED; "": there is none."""
    return next((value for name, value in properties.user if name == PASSED), "")


def with_passed(properties: Properties, id: str) -> Properties:
    """Return the properties with the bridge ``id`` added to PASSED."""
    others = tuple(each for each in properties.user if each[0] != PASSED)
    return replace(properties, user=(*others, (PASSED, f"{passed_bridges(properties)} {id}".lstrip())))
