"""Conversion of destination interceptors: [[virtual_destinations]]."""

from __future__ import annotations

from typing import Any, Final

from tandemmq.config.broker_properties import VIRTUAL
from tandemmq.config.from_xml.conversion import INSIDE, Conversion, Table
from tandemmq.config.from_xml.document import Element
from tandemmq.config.virtual_destinations import ForwardSettings

_KINDS: Final = {
    "virtualTopic": "virtual_topic",
    "compositeQueue": "composite_queue",
    "compositeTopic": "composite_topic",
}
_TWICE: Final = "Only the first entry of a pattern is converted."
_STILL_VIRTUAL: Final = (
    "In ActiveMQ, configured interceptors replace the virtual topics VirtualTopic.>. Here those are "
    "virtual until a virtual_topic table defines others."
)
_FORWARD: Final = "Messages are forwarded to a queue or a topic of a fixed name."


def interceptors(work: Conversion, holder: Element) -> None:
    work.wrap(holder)
    for element in holder.children:
        if element.name == "virtualDestinationInterceptor":
            work.wrap(element)
            for wrapper in work.children(element, "virtualDestinations"):
                for virtual in work.children(wrapper, *_KINDS):
                    _virtual(work, virtual, _KINDS[virtual.name])
        elif element.name == "mirroredQueue":
            mirrored(work, element, None)
    if not any(each.name == "virtualTopic" for each in holder.walk()):
        work.became(holder, None, INSIDE, _STILL_VIRTUAL)


def mirrored(work: Conversion, element: Element, attribute: str | None) -> None:
    """Mirror all queues: by an interceptor of its own, or by the broker's attribute."""
    table = _table(work, element, attribute, "mirrored_queue", ">")
    if table is not None and attribute is None:
        work.carry_all(element, VIRTUAL, table, "virtual_destinations.")


def _table(work: Conversion, element: Element, attribute: str | None, kind: str, pattern: str) -> Table | None:
    known: list[Table] = work.settings.values.get("virtual_destinations", [])
    if any(each.values.get(kind) == pattern for each in known):
        work.leave(element, attribute, _TWICE)
        return None
    table = work.settings.add("virtual_destinations", (element, attribute))
    work.carry(element, attribute, table, kind, pattern)
    return table


def _virtual(work: Conversion, element: Element, kind: str) -> None:
    pattern = work.value(element, "name") if "name" in element.attributes else ">"
    table = _table(work, element, None, kind, pattern)
    if table is None:
        return
    if "name" in element.attributes:
        work.carry(element, "name", table, kind)
    work.carry_all(element, VIRTUAL, table, "virtual_destinations.")
    for holder in element.children:
        if holder.name == "forwardTo":
            work.wrap(holder)
            for each in holder.children:
                _forward(work, each, table)


def _forward(work: Conversion, element: Element, table: Table) -> None:
    places: dict[str, str] = {}
    if element.name in ("queue", "topic"):
        places = {"physicalName": element.name, "name": element.name}
    elif element.name == "filteredDestination":
        places = {"queue": "queue", "topic": "topic", "selector": "selector"}
    given: dict[str, Any] = {name: key for name, key in places.items() if name in element.attributes}
    if not set(given.values()) & {"queue", "topic"}:
        work.leave(element, None, _FORWARD)
        return
    forward = table.add("forward_to", (element, None), ForwardSettings)
    for name, key in given.items():
        work.carry(element, name, forward, key)
