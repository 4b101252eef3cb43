"""Conversion of the tables [[virtual_destinations]] to the rules that the core reads."""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.selector import compile_selector
from tandemmq.broker.core.virtual_destinations import Composite, Forward, Mirrored, VirtualDestinations, VirtualTopic
from tandemmq.config.errors import SettingsError
from tandemmq.config.virtual_destinations import ForwardSettings, VirtualDestinationSettings
from tandemmq.store.records.message import Destination, DestinationKind


def virtual_destinations(tables: Sequence[VirtualDestinationSettings]) -> VirtualDestinations:
    """Return the destinations that forward messages. SettingsError for an invalid selector."""
    composites, mirrored, topics = [], [], []
    for number, text in enumerate(tables):
        kind, pattern = text.subject
        if kind == "virtual_topic":
            topics.append(VirtualTopic(pattern, text.named_prefix, text.postfix, text.selector_aware))
        elif kind == "mirrored_queue":
            mirrored.append(Mirrored(pattern, text.named_prefix, text.postfix))
        else:
            forwards = tuple(
                _forward(each, f"virtual_destinations[{number}].forward_to[{place}].selector")
                for place, each in enumerate(text.forward_to)
            )
            of = DestinationKind[kind.removeprefix("composite_").upper()]
            composites.append(Composite(of, pattern, forwards, text.forward_only, text.send_when_not_matched))
    return VirtualDestinations(composites, mirrored, topics or (VirtualTopic(),))


def _forward(value: ForwardSettings, key: str) -> Forward:
    if value.queue is not None:
        destination = Destination(DestinationKind.QUEUE, value.queue)
    else:
        assert value.topic is not None, "the settings were validated"
        destination = Destination(DestinationKind.TOPIC, value.topic)
    if value.selector is None:
        return Forward(destination)
    try:
        return Forward(destination, compile_selector(value.selector))
    except ClientError as error:
        raise SettingsError(key, value.selector, f"a selector: {error.message}") from error
