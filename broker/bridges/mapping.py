"""Topics that a bridge carries, and their names on the other side. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tandemmq.broker.protocols.mqtt.topics import matches


@dataclass(frozen=True)
class Topic:
    """Entry of a bridge's ``topics`` (config.bridges): ``<local_prefix><pattern>`` here is
    ``<remote_prefix><pattern>`` there."""

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
        """Topic filter there."""
        return self.remote_prefix + self.pattern

    def remote_name(self, topic: str) -> str:
        """Return the name there of a topic here, which the filter matches."""
        return self.remote_prefix + topic[len(self.local_prefix) :]

    def local_name(self, topic: str) -> str:
        """Return the name here of a topic there, which the filter matches."""
        return self.local_prefix + topic[len(self.remote_prefix) :]


def of_remote(topics: Sequence[Topic], topic: str) -> Topic | None:
    """Return the entry for an incoming topic; None: there is none. No two match the same topic (config.bridges)."""
    return next((each for each in topics if each.is_in and matches(each.remote, topic)), None)
