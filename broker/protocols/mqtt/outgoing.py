"""Messages on their way to one client: packet ids, and their greatest number at once. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from tandemmq.broker.protocols.mqtt.packets import Filter
from tandemmq.broker.protocols.mqtt.session_records import PACKET_ID_MAX
from tandemmq.store.records.message import Message


class Record:
    """Message of the session's queue. ``tag``: of its delivery; 0: it has not come back yet, and then ``then`` is
    called when it does."""

    __slots__ = ("tag", "then")

    def __init__(self, tag: int = 0) -> None:
        self.tag = tag
        self.then: Callable[[], None] | None = None


class Position:
    """Position of a subscription in the retained messages that it is owed: those of the topics behind ``after`` ("": of
    all), in the order of topics, that are not newer than ``until`` (None: than what there is when they begin to be
    given). Newer ones come by the subscription itself."""

    __slots__ = ("after", "until")

    def __init__(self, after: str = "", until: int | None = None) -> None:
        self.after = after
        self.until = until


class Subscription:
    """Topic filter of a client. ``id`` names it to the engine and is never given twice. ``durable_name``: the durable
    subscription that gathers for it while its client is away. ``record``: what is kept of it. ``owed``: retained
    messages that are not acknowledged; ``owes_retained``: the record says that there are some, and ``position`` which.
    ``is_begun``: the engine got its Subscribe, and did not refuse. ``unsure``: so many of the next messages of a
    destination may have been sent by a former master."""

    __slots__ = (
        "durable_name",
        "filter",
        "id",
        "is_auto",
        "is_begun",
        "is_left",
        "owed",
        "owes_retained",
        "position",
        "record",
        "share",
        "shuns_dollar",
        "subscription_id",
        "unsure",
    )

    def __init__(
        self,
        id: str,
        filter: Filter,
        share: tuple[str, str] | None,
        durable_name: str | None,
        subscription_id: int | None,
        is_auto: bool,
    ) -> None:
        self.id = id
        self.filter = filter
        self.share = share
        self.durable_name = durable_name
        self.subscription_id = subscription_id
        self.is_auto = is_auto
        self.is_begun = False
        self.is_left = False
        self.record: Record | None = None
        self.owed = 0
        self.owes_retained = False
        self.position: Position | None = None
        self.unsure: dict[str, int] = {}
        # The filter begins with a wildcard, and so means no topic that begins with $ (MQTT-4.7.2-1).
        self.shuns_dollar = self.pattern[:1] in ("#", "+")

    @property
    def pattern(self) -> str:
        """Topic filter without the group of a shared subscription."""
        return self.filter.topic_filter if self.share is None else self.share[1]


class Delivery:
    """Message for the client, as it will be written. ``subscription_id`` and ``tag`` acknowledge it to the engine;
    ``tag`` 0: there is nothing to acknowledge. ``position``: of a retained one, for a subscription that began; it moves
    when the message is sent."""

    __slots__ = (
        "is_dup",
        "is_retain",
        "message",
        "payload",
        "position",
        "qos",
        "subscription",
        "subscription_id",
        "tag",
        "topic",
    )

    def __init__(
        self,
        subscription: Subscription,
        subscription_id: str,
        tag: int,
        message: Message,
        topic: str,
        payload: bytes,
        qos: int,
        is_retain: bool,
        is_dup: bool,
        position: Position | None,
    ) -> None:
        self.subscription = subscription
        self.subscription_id = subscription_id
        self.tag = tag
        self.message = message
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.is_retain = is_retain
        self.is_dup = is_dup
        self.position = position


class Phase(Enum):
    """State of a message of QoS 1 or 2."""

    STORING = auto()  # of a bridge: its packet id is being stored, and nothing was sent
    SENT = auto()
    RECEIVED = auto()  # PUBREC came, which is to be kept before PUBREL is sent
    RELEASED = auto()  # PUBREL was sent


class Flight:
    """Packet id in use. ``record``: what is kept of it, in a stored session; ``delivery`` None: the message is the
    client's."""

    __slots__ = ("delivery", "phase", "record")

    def __init__(self, delivery: Delivery | None, phase: Phase) -> None:
        self.delivery = delivery
        self.phase = phase
        self.record: Record | None = None


class Given:
    """Packet id that a message had before its client came back. ``record``: what is kept of it; None: it has QoS 1, and
    nothing is. ``expiration``: of the message; 0: never. ``message``: the message itself, if the record holds it;
    ``topic``: of a retained message, which is the one that its topic has, or is gone. Any other comes from its
    subscription."""

    __slots__ = ("expiration", "message", "packet_id", "qos", "record", "topic")

    def __init__(
        self,
        packet_id: int,
        qos: int,
        expiration: int,
        record: Record | None,
        message: Message | None = None,
        topic: str | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.qos = qos
        self.expiration = expiration
        self.record = record
        self.message = message
        self.topic = topic


class Outgoing:
    """Packet ids of one connection, from 1 to ``last``. ``limit``: so many may be in use, the client's Receive
    Maximum."""

    def __init__(self, limit: int, last: int = PACKET_ID_MAX) -> None:
        self.limit = limit
        self._max = last
        self.flights: dict[int, Flight] = {}
        # By filter and id of the message, which comes again.
        self.given: dict[tuple[str, str], Given] = {}
        self._reserved: set[int] = set()
        self._last = 0

    @property
    def has_room(self) -> bool:
        count = len(self.flights)
        # prove: room-for-a-free-id " and count + len(self._reserved) < self._max"
        return count < self.limit and count + len(self._reserved) < self._max

    def next_id(self) -> int:
        """Return a packet id that is free, while there is room."""
        number = self._last
        while True:
            number = number % self._max + 1
            # prove: id-of-another-is-not-given " and number not in self._reserved"
            if number not in self.flights and number not in self._reserved:
                self._last = number
                return number

    def reserve(self, name: tuple[str, str], given: Given) -> Given | None:
        """Reserve the packet id that the message had. Return the one that is reserved for the same message already, and
        so counts no more."""
        former = self.given.get(name)
        if former is not None:
            self._reserved.discard(former.packet_id)
        self.given[name] = given
        self._reserved.add(given.packet_id)
        return former

    def remember(self, name: tuple[str, str], packet_id: int) -> None:
        """Reserve the packet id that the message had, with QoS 1, unless another message has it by now."""
        if packet_id not in self.flights and packet_id not in self._reserved and name not in self.given:
            self.reserve(name, Given(packet_id, 1, 0, None))

    def take(self, name: tuple[str, str]) -> Given | None:
        """Return the packet id that the message had, and free it."""
        given = self.given.pop(name, None) if self.given else None
        if given is not None:
            self._reserved.discard(given.packet_id)
        return given
