"""Subscriptions of a bridge, here and there: a record in its queue, so that the next master ends those that the
settings do not have any more, and subscribes to nothing twice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tandemmq.broker.core.commands import Ack, Begin, Command, Commit, Send
from tandemmq.broker.protocols.mqtt.kept_records import STATE, KeptRecords, Ways
from tandemmq.broker.protocols.mqtt.outgoing import Record
from tandemmq.broker.protocols.mqtt.session_records import Kind, RecordUnreadable


@dataclass(slots=True, eq=False)
class Begun:
    """``remote``: the topic filters that the other broker has confirmed, with their QoS; ``local``: the names of the
    durable subscriptions here; ``id``: the bridge's, unique among all brokers (broker.bridges.link)."""

    remote: dict[str, int] = field(default_factory=dict)
    local: list[str] = field(default_factory=list)
    id: str = ""

    def encode(self) -> bytes:
        fields = {"remote": self.remote, "local": self.local, "id": self.id}
        return json.dumps(fields, ensure_ascii=False).encode()

    @staticmethod
    def decode(body: bytes) -> Begun:
        """Raises RecordUnreadable."""
        try:
            fields = json.loads(body)
            remote = {str(name): int(qos) for name, qos in fields["remote"].items()}
            return Begun(remote, [str(name) for name in fields["local"]], str(fields.get("id", "")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordUnreadable(f"subscribed: {error}") from error


class Subscribed:
    """Keeps the record. ``begun``: its last content."""

    def __init__(self, ways: Ways, kept: KeptRecords) -> None:
        self._ways = ways
        self._kept = kept
        self._record: Record | None = None
        self.begun = Begun()

    def found(self, body: bytes, tag: int) -> None:
        """Take over a record. Raises RecordUnreadable."""
        self.begun = Begun.decode(body)
        if self._record is not None:
            self._kept.is_stale(self._record.tag)
        self._record = Record(tag)

    def remember_commands(self, begun: Begun) -> tuple[list[Command], Commit]:
        """Return the commands that replace the former record, and the end of that transaction."""
        former, name = self._record, self._ways.next_transaction()
        self.begun = begun
        message, self._record = self._kept.keep(Kind.SUBSCRIBED, begun.encode())
        commands: list[Command] = [Begin(name), Send(message, name)]
        if former is not None and former.tag:
            commands.append(Ack(STATE, former.tag, name))
        elif former is not None:
            self._kept.drop(former)  # when it comes back
        return commands, Commit(name)
