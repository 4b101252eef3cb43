"""Hooks of a session into the broker: events of its client, and services beyond its own connection."""

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
    """End of a connection that had been accepted. ``will``: to be published after its delay; None: there is none, or
    its client left in order; ``will_bytes``: memory reserved by ``may_have_will``. ``state``: the queue of its session,
    if that is stored; ``expiry``: its seconds to live from now on; ``is_noted``: its record has the time of the end.
    ``sent``: of a session that is stored, for the next connection."""

    client_id: str
    principal: Principal
    will: Will | None
    state: Destination | None
    expiry: int
    is_noted: bool = False
    sent: SentIds = field(default_factory=dict)
    will_bytes: int = 0


class Hooks(Protocol):
    """Hooks, called on the loop. None of them raises."""

    @property
    def is_loaded(self) -> bool:
        """True if ``retained`` has all messages that were confirmed as retained. False while the messages of a former
        term are read, and for a moment after each one."""

    def when_loaded(self, then: Callable[[], None]) -> None:
        """Call ``then``, once, when ``is_loaded``."""

    def retained(self, topic_filter: str, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        """Return the retained messages of the topics that match, as they were published, in the order of their topics,
        from those behind ``after`` on. None is newer than ``until``, a number that ``newest`` was.
        ``Message.original_destination`` is the topic's. Messages that are not persistent are of $SYS: they have no
        place in that order, and are made for this call. None: time for a pause; other turns of the loop may come before
        the next one."""

    @property
    def newest(self) -> int:
        """Number that is less than those of all messages that are retained from now on, also with another master."""

    def may_retain(self, topic: Destination, size: int) -> int:
        """Return the number of a retained message of so many bytes (``retained.number_of``); 0: it has no room
        (settings ``mqtt.retained_messages_max`` and ``retained_bytes_max``). Called for each one before it is sent; an
        empty one (0) has room."""

    def may_have_will(self, principal: Principal, size: int) -> bool:
        """Return whether so many bytes of memory may be taken for a will of ``principal``; then they are, until
        ``left`` or ``give_will_back``, or until the will that is left is published. The wills of one user have no more
        than the bound of the memory (``Memory.held_max``)."""

    def give_will_back(self, principal: Principal, size: int) -> None:
        """Give back the memory of a will: the connection ended before it was accepted."""

    def publish_refused(self, client_id: str, reason: str) -> None:
        """Report that a message of a client of MQTT 3 was refused, and not for want of rights. The client gets no
        reason."""

    def came(self, client_id: str, *, is_resumed: bool) -> None:
        """Report that a client was accepted. ``is_resumed``: with the session that it had."""

    def left(self, left: Left) -> None: ...

    def sent(self, client_id: str) -> SentIds | None:
        """Return the packet ids that the last connection of that client id left, as far as they are remembered; None:
        no such connection is known, so a former master may have sent messages. Called once, when the session goes
        on."""
