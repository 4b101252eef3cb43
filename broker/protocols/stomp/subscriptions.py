"""Subscription of STOMP: its SUBSCRIBE, and how it names its deliveries and finds them again. Pure."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from tandemmq.broker.core.commands import AckMode, ClientError, Subscribe, refusal
from tandemmq.broker.core.numbers import whole_number
from tandemmq.broker.protocols.stomp.destinations import DestinationNames
from tandemmq.broker.protocols.stomp.dialects import V10, Dialect
from tandemmq.broker.protocols.stomp.frames import Headers, missing
from tandemmq.store.records.message import Destination, DestinationKind

# All properties that a STOMP client sets are texts. With this prefix, which ActiveMQ's ProtocolConverter adds, a
# selector also compares texts that contain numbers as numbers.
SELECTOR_PREFIX = "convert_string_expressions:"
PRIORITY_MIN, PRIORITY_MAX = -128, 127

_ACK_MODES = {mode.value: mode for mode in (AckMode.AUTO, AckMode.CLIENT, AckMode.INDIVIDUAL)}
_DIGITS_MAX = 9


def read_subscribe(headers: Headers, dialect: Dialect, names: DestinationNames) -> Subscribe:
    """Return the request in a SUBSCRIBE frame, from ActiveMQ's headers; if one is missing, from that of Artemis or
    RabbitMQ."""
    get = headers.get
    name = get("destination")
    if name is None:
        raise missing("SUBSCRIBE", "destination")
    id = get("id", name if dialect is V10 else None)
    if id is None:
        raise missing("SUBSCRIBE", "id")
    selector = get("selector", "").strip()
    is_browser = _is_true(get("browser"))
    if is_browser and dialect is V10:
        raise refusal("Queue browsers need STOMP 1.1", "Name 1.1 or 1.2 in accept-version.")
    return Subscribe(
        id,
        names.read(name),
        _ACK_MODES.get(get("ack", "auto"), AckMode.AUTO),  # an unknown value means auto (ActiveMQ)
        prefetch=_prefetch(headers),
        durable_name=durable_name_of(headers),
        selector=SELECTOR_PREFIX + selector if selector else None,
        no_local=_is_true(get("activemq.noLocal", get("no-local"))),
        is_browser=is_browser,
        is_exclusive=_is_true(get("activemq.exclusive")),
        is_retroactive=_is_true(get("activemq.retroactive")),
        priority=_priority(get("activemq.priority")),
        receipt=get("receipt"),
    )


# ActiveMQ's, Artemis's, and the one that Artemis had before. Of several the first counts.
_DURABLE_NAMES = ("activemq.subscriptionName", "durable-subscriber-name", "durable-subscription-name")


def durable_name_of(headers: Headers) -> str | None:
    """Return the durable name in any of its headers. Raises a ClientError, not fatal, for an empty name."""
    for header in _DURABLE_NAMES:
        name = headers.get(header)
        if name is not None:
            if not name:
                raise refusal(
                    f"The header {header} is empty",
                    "It names a durable subscription. Omit it for any other subscription.",
                )
            return name
    return None


def _is_true(value: str | None) -> bool:
    return value is not None and value.lower() == "true"


def _prefetch(headers: Headers) -> int | None:
    """Return the prefetch. STOMP has no pull, so a prefetch of 0 would deliver nothing: 0 counts as 1. Exception: in
    RabbitMQ's header, 0 means no limit."""
    own = headers.get("activemq.prefetchSize")
    text = headers.get("prefetch-count") if own is None else own
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ClientError(f"Not a prefetch: {text[:40]!r}", "A number of messages is expected.")
    return int(text) or (None if own is None else 1)


def _priority(text: str | None) -> int:
    if text is None:
        return 0
    try:
        priority = whole_number(text)
    except ValueError:
        priority = PRIORITY_MAX + 1
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise refusal(
            f"The header activemq.priority has the value {text[:40]!r}",
            f"A number from {PRIORITY_MIN} to {PRIORITY_MAX} is expected; the highest consumers are served first.",
        )
    return priority


@dataclass(slots=True, eq=False, repr=False)
class StompSubscription:
    """Subscription as its client sees it.

    ``start`` are the first lines of its MESSAGE frames. They precede the message's own headers, so that they take
    precedence over a property of the same name (STOMP 1.2, Repeated Header Entries). ``transformation`` is the form in
    which it wants bodies that are neither text nor bytes.
    """

    id: str
    ordinal: str
    is_named: InitVar[bool]
    dialect: InitVar[Dialect]
    start: bytes = field(init=False)
    ack_start: bytes = field(init=False)
    # STOMP 1.0 and 1.1: tags of the deliveries not acknowledged yet by message id, oldest first.
    tags: dict[str, int] = field(default_factory=dict, init=False)
    is_cumulative: bool = field(default=False, init=False)
    destination: Destination = field(default_factory=lambda: Destination(DestinationKind.QUEUE, ""), init=False)
    is_browser: bool = field(default=False, init=False)
    transformation: str | None = field(default=None, init=False)

    def __post_init__(self, is_named: bool, dialect: Dialect) -> None:
        # STOMP 1.0: a subscription without an id is identified by its destination, which the MESSAGE names anyway.
        self.start = f"MESSAGE\nsubscription:{dialect.escape(self.id)}\n".encode() if is_named else b"MESSAGE\n"
        self.ack_start = self.start + f"ack:{self.ordinal}-".encode()

    def check_nack(self) -> None:
        """Raise a ClientError, not fatal, for a browser: it has nothing to refuse (StompQueueBrowserSubscription)."""
        if self.is_browser:
            raise refusal(
                f"The subscription {self.id[:200]!r} is a browser",
                "A browser only shows messages and cannot refuse them.",
            )

    def remember(self, message_id: str, tag: int, ack_mode: AckMode) -> None:
        self.is_cumulative = ack_mode is AckMode.CLIENT
        self.tags.pop(message_id, None)  # delivered again: its place is at the end
        self.tags[message_id] = tag

    def forget(self, message_id: str) -> None:
        """Forget a delivery that is acknowledged or refused; with the mode ``client`` also those before it."""
        tag = self.tags.pop(message_id, None)
        if tag is None or not self.is_cumulative:
            return
        older = []
        for id, older_tag in self.tags.items():
            if older_tag > tag:
                break
            older.append(id)
        for id in older:
            del self.tags[id]
