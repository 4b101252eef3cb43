"""What a session tells of its client, and what it asks for, beyond its own connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tandemmq.broker.core.principal import Principal
from tandemmq.broker.protocols.mqtt.packets import Will
from tandemmq.broker.protocols.mqtt.retained import NEWEST
from tandemmq.store.records.message import Destination, Message

# Packet ids of messages of QoS 1 that were sent and not acknowledged, by topic filter and id of the message.
SentIds = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Left:
    """The end of a connection that had been accepted. ``will``: to be published after its delay; None: there is none,
    or its client left in order; ``will_bytes``: what it was given by ``may_have_will``. ``state``: the queue of its
    session, if that is stored; ``expiry``: its seconds to live from now on; ``is_noted``: its record says since when.
    ``sent``: of a session that is stored, for who comes back to it."""

    client_id: str
    principal: Principal
    will: Will | None
    state: Destination | None
    expiry: int
    is_noted: bool = False
    sent: SentIds = field(default_factory=dict)
    will_bytes: int = 0


class Hooks(Protocol):
    """On the loop. Nothing of it raises."""

    @property
    def is_loaded(self) -> bool:
        """Whether ``retained`` has all that was confirmed to those who had it retained. Not so while the messages of a
        former term are read, and for a moment after each one."""

    def when_loaded(self, then: Callable[[], None]) -> None:
        """``then`` is called, once, when ``is_loaded``."""

    def retained(self, topic_filter: str, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        """The retained messages of the topics that match, as they were published, in the order of their topics, of
        those behind ``after``. None is newer than ``until``, a number that ``newest`` was.
        ``Message.original_destination`` is the topic's. What is not persistent is of $SYS: it has no place in that
        order, and is made for who asks. None: time for a pause; other turns of the loop may come before the next is
        asked for."""

    @property
    def newest(self) -> int:
        """What is retained from now on is newer than that, also with another master."""

    def may_retain(self, topic: Destination, size: int) -> int:
        """The number of a retained message of so many bytes (``retained.number_of``); 0: it has no room (settings
        ``mqtt.retained_messages_max`` and ``retained_bytes_max``). Asked for each one before it is sent; an empty one
        (0) has room."""

    def may_have_will(self, principal: Principal, size: int) -> bool:
        """Whether so many bytes of memory may be taken for a will of ``principal``; then they are, until ``left`` or
        ``give_will_back``, or until what is left is published. Nobody's wills have more than what is left."""

    def give_will_back(self, principal: Principal, size: int) -> None:
        """The connection ended before it was accepted."""

    def publish_refused(self, client_id: str, reason: str) -> None:
        """A message of a client of MQTT 3 was refused, and not for want of rights. The client is not told why."""

    def came(self, client_id: str, *, is_resumed: bool) -> None:
        """A client was accepted. ``is_resumed``: with the session that it had."""

    def left(self, left: Left) -> None: ...

    def sent(self, client_id: str) -> SentIds | None:
        """What the last connection of that client id left, as far as it is remembered; None: nothing is known of one,
        so a former master may have sent messages. Asked for once, by who goes on with its session."""
