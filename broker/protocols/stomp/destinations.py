"""Names of destinations in STOMP, and back. Pure.

    /queue/a  /topic/a                          a, and a name without such a prefix is the queue of that whole name,
                                                including its slashes
    /temp-queue/a  /temp-topic/a                of this connection: created at first use, deleted with it
    /remote-temp-queue/x  /remote-temp-topic/x  of any connection, by the name that the broker gave it: for a reply-to
    /queue/a,/topic/b                           a composite
    /queue/a.*  /topic/a.>                      a wildcard

ActiveMQ's LegacyFrameTranslator reads and writes them in the same way. Composites and wildcards stay in the name, a
composite in OpenWire's form (``a,topic://b``): the engine splits them.
"""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.broker.core.commands import ErrorKind, refusal
from tandemmq.broker.core.names import SCHEMES
from tandemmq.store.records.message import Destination, DestinationKind

# Maximum number of names of one connection that are remembered; beyond it, all except its temporary ones are forgotten.
NAMES_MAX = 1024
# Temporary destinations that one connection may have.
TEMPORARY_MAX = 1000

_PREFIXES = {
    "/queue/": DestinationKind.QUEUE,
    "/topic/": DestinationKind.TOPIC,
    "/remote-temp-queue/": DestinationKind.TEMP_QUEUE,
    "/remote-temp-topic/": DestinationKind.TEMP_TOPIC,
}
_TEMPORARY = {"/temp-queue/": DestinationKind.TEMP_QUEUE, "/temp-topic/": DestinationKind.TEMP_TOPIC}
_WRITTEN = {kind: prefix for prefix, kind in _PREFIXES.items()}


class DestinationNames:
    """Names of one connection and their destinations. ``own``: its temporary destinations, for which other connections
    use another name; ``created``: those that it used since this list was emptied; ``known``: names that ``read`` need
    not parse again.

    ``secret`` returns random text, so that a client cannot guess the name of a temporary destination."""

    __slots__ = ("_connection_id", "_secret", "_temporary", "created", "known", "own")

    def __init__(self, connection_id: str, secret: Callable[[], str]) -> None:
        self._connection_id = connection_id
        self._secret = secret
        self.known: dict[str, Destination] = {}
        self._temporary: dict[str, Destination] = {}
        self.own: dict[Destination, str] = {}
        self.created: list[Destination] = []

    def read(self, text: str) -> Destination:
        """Return the destination that ``text`` names; raise a ClientError that is not fatal if it names none."""
        found = self.known.get(text)
        if found is not None:
            return found
        first, *others = [self._read_one(text, name) for name in text.strip().split(",")]
        if others:
            names = [each.name if each.kind is first.kind else str(each) for each in others]
            first = Destination(first.kind, ",".join((first.name, *names)))
        if len(self.known) >= NAMES_MAX:
            self.known.clear()
        self.known[text] = first
        return first

    def read_reply_to(self, text: str) -> Destination | None:
        """Return the destination of a reply-to header; None for a name without prefix, which stays a property
        (ActiveMQ)."""
        if text.strip().startswith((*_PREFIXES, *_TEMPORARY)):
            return self.read(text)
        return None

    def write(self, destination: Destination) -> str:
        """Return the name by which this connection sends and subscribes to it."""
        own = self.own.get(destination)
        return write_destination(destination) if own is None else own

    def _read_one(self, text: str, name: str) -> Destination:
        name = name.strip()
        kind = DestinationKind.QUEUE
        for prefix, prefix_kind in _TEMPORARY.items():
            if name.startswith(prefix) and name != prefix:
                return self._temporary.get(name) or self._create(name, prefix_kind)
        for prefix, prefix_kind in (_PREFIXES | _TEMPORARY).items():
            if name.startswith(prefix):
                kind = prefix_kind
                name = name[len(prefix) :]
                break
        if not name:
            raise refusal(
                f"The destination {text!r} has no name", "Use /queue/NAME or /topic/NAME.", ErrorKind.DESTINATION
            )
        if "?" in name:
            raise refusal(
                f"The destination {text!r} has options",
                "Use headers instead, such as activemq.prefetchSize, activemq.exclusive or selector.",
                ErrorKind.DESTINATION,
            )
        return Destination(kind, name)

    def _create(self, name: str, kind: DestinationKind) -> Destination:
        if len(self._temporary) >= TEMPORARY_MAX:
            raise refusal(
                f"{name!r} would be temporary destination number {TEMPORARY_MAX + 1} of this connection",
                f"A connection may have at most {TEMPORARY_MAX}; they exist until it ends.",
                ErrorKind.RESOURCE,
            )
        # ActiveMQTempDestination: <connection id>:<number>.
        created = Destination(kind, f"{self._connection_id}-{self._secret()}:{len(self._temporary) + 1}")
        self._temporary[name] = created
        self.own[created] = name
        self.created.append(created)
        return created


def write_destination(destination: Destination) -> str:
    """Return the name of a destination for all connections, except the one to which a temporary destination belongs."""
    kind, name = destination
    if "," not in name:
        return _WRITTEN[kind] + name
    return ",".join(_written_part(kind, part) for part in name.split(","))


def _written_part(kind: DestinationKind, name: str) -> str:
    for scheme, scheme_kind in SCHEMES.items():
        if name.startswith(scheme):
            return _WRITTEN[scheme_kind] + name[len(scheme) :]
    return _WRITTEN[kind] + name
