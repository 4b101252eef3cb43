"""The tables [[virtual_destinations]]: destinations that forward messages, as ActiveMQ's compositeQueue,
compositeTopic, virtualTopic and mirroredQueue.

If a table defines virtual topics, ActiveMQ's default, ``VirtualTopic.>``, no longer applies
(VirtualDestinationInterceptor).
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from tandemmq.config.destinations import different
from tandemmq.config.section import Subject, without
from tandemmq.config.store import Pattern

FORWARDS_MAX: Final = 100
DEFAULT_PREFIXES: Final = {"virtual_topic": "Consumer.*.", "mirrored_queue": "VirtualTopic.Mirror."}


Name = Annotated[str, without("*>,?", "the name of one destination")]
Part = Annotated[str, without(">,?", "a part of a destination's name, in which * is any word", may_be_empty=True)]


class ForwardSettings(Subject):
    queue: Name | None = None
    """Forward messages to this queue."""
    topic: Name | None = None
    """Forward messages to this topic."""
    selector: str | None = None
    """Forward only messages that match this selector. Default: all."""


class VirtualDestinationSettings(Subject):
    kinds = ("composite_queue", "composite_topic", "mirrored_queue", "virtual_topic")

    composite_queue: Pattern | None = None
    """Messages to queues of this pattern are forwarded (`forward_to`)."""
    composite_topic: Pattern | None = None
    """Messages to topics of this pattern are forwarded (`forward_to`)."""
    mirrored_queue: Pattern | None = None
    """Messages to queues of this pattern are also sent to the topic `<prefix><queue><postfix>`."""
    virtual_topic: Pattern | None = None
    """Topics of this pattern feed queues `<prefix><topic><postfix>`. Default without such a table: `VirtualTopic.>`."""
    forward_to: tuple[ForwardSettings, ...] = Field((), max_length=FORWARDS_MAX)
    forward_only: bool = True
    """A composite destination keeps no message itself."""
    send_when_not_matched: bool = False
    """The destination keeps the messages that no forward selects, and only these, whatever `forward_only` is."""
    prefix: Part | None = None
    """Text before the name. Default: `Consumer.*.` for virtual topics, `VirtualTopic.Mirror.` for mirrored queues."""
    postfix: Part = ""
    """Text after the name."""
    selector_aware: bool = False
    """A queue of a virtual topic receives only messages that one of its consumers selects."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        kind, _ = self.subject
        if kind.startswith("composite") != bool(self.forward_to):
            raise ValueError("forward_to with composite destinations, and only with them")
        if kind == "mirrored_queue" and "*" in f"{self.prefix}{self.postfix}":
            raise ValueError("a prefix and a postfix without *, because they name one topic")
        if kind in DEFAULT_PREFIXES and not self.named_prefix and not self.postfix:
            raise ValueError("a prefix or a postfix, because a destination cannot forward to itself")
        return self

    @property
    def named_prefix(self) -> str:
        return DEFAULT_PREFIXES.get(self.subject[0], "") if self.prefix is None else self.prefix


VirtualDestinations = Annotated[tuple[VirtualDestinationSettings, ...], AfterValidator(different)]
