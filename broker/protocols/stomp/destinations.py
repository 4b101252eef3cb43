"""How STOMP names destinations, and back. Pure.

``/queue/a`` is the queue ``a``, ``/topic/a`` the topic, and a name without such a prefix the queue of that whole
name, slashes and all (ActiveMQ's LegacyFrameTranslator). What TandemMQ cannot do yet is refused by name: a
client that gets no error would wait for messages that never come.
"""

from __future__ import annotations

from broker.core.commands import ClientError
from store.records.message import Destination, DestinationKind

_PREFIXES = {"/queue/": DestinationKind.QUEUE, "/topic/": DestinationKind.TOPIC}
_TEMPORARY = ("/temp-queue/", "/temp-topic/", "/remote-temp-queue/", "/remote-temp-topic/")
_WRITTEN = {
    DestinationKind.QUEUE: "/queue/",
    DestinationKind.TOPIC: "/topic/",
    DestinationKind.TEMP_QUEUE: "/remote-temp-queue/",
    DestinationKind.TEMP_TOPIC: "/remote-temp-topic/",
}


def read_destination(text: str) -> Destination:
    """The destination that ``text`` names; raises a ClientError that is not fatal for one that is not supported."""
    name = text.strip()
    kind = DestinationKind.QUEUE
    if name.startswith(_TEMPORARY):
        raise _unsupported(text, "Temporary destinations are")
    for prefix, prefix_kind in _PREFIXES.items():
        if name.startswith(prefix):
            kind = prefix_kind
            name = name[len(prefix) :]
            break
    if not name:
        raise ClientError(
            f"The destination {text!r} has no name",
            "Use /queue/NAME or /topic/NAME.",
            is_fatal=False,
        )
    if "," in name:
        raise _unsupported(text, "Composite destinations (names with a comma) are")
    if "?" in name:
        raise _unsupported(text, "Destination options (after a question mark) are")
    if ("*" in name or ">" in name) and not {"*", ">"}.isdisjoint(name.split(".")):
        raise _unsupported(text, "Wildcards are")
    return Destination(kind, name)


def read_reply_to(text: str) -> Destination | None:
    """The destination of a reply-to header; None for a name without prefix, which stays a property (ActiveMQ)."""
    if text.strip().startswith((*_PREFIXES, *_TEMPORARY)):
        return read_destination(text)
    return None


def write_destination(destination: Destination) -> str:
    """The name that a client sends to and subscribes to."""
    return _WRITTEN[destination.kind] + destination.name


def _unsupported(text: str, what: str) -> ClientError:
    return ClientError(
        f"The destination {text!r} is not supported yet",
        f"{what} not supported yet; use /queue/NAME or /topic/NAME.",
        is_fatal=False,
    )
