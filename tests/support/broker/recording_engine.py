"""An engine that records the calls of connections and answers at once, for tests of transport and server."""

from __future__ import annotations

from tandemmq.broker.core.commands import Command, Connect, Disconnect, ProtocolFailure, Send, Subscribe
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.net.transport import Connection


class RecordingEngine:
    """Answers CONNECT, receipts and failures; delivers each message to the subscriptions of the same connection."""

    def __init__(self) -> None:
        self.is_congested = self.is_behind = False
        self.handed_over = 0
        self.reports = 0
        self.memory = Memory(1 << 30)
        self.is_sure = True
        self.events: list[str] = []
        self.commands: list[Command] = []
        self.subscriptions: dict[tuple[Connection, str], Subscribe] = {}
        self.tag = 0

    @property
    def store(self) -> RecordingEngine:
        """Return itself: it also replaces the store."""
        return self

    def may_speak(self) -> bool:
        return self.is_sure

    def take_reports(self) -> bool:
        """Return False: this engine has no store."""
        return False

    def check_fence_soon(self) -> None:
        self.events.append("look")

    def opened(self, connection: Connection) -> None:
        self.events.append("opened")

    def handle(self, connection: Connection, command: Command) -> None:
        self.commands.append(command)
        session = connection.session
        connection.touch()
        if isinstance(command, Connect):
            session.connected(command, connection.id)
            return
        if isinstance(command, ProtocolFailure):
            session.fail(command.error)
            if command.error.is_fatal:
                connection.close()
            return
        if isinstance(command, Subscribe):
            self.subscriptions[connection, command.id] = command
        if isinstance(command, Send):
            for (owner, id), subscribe in self.subscriptions.items():
                if owner is connection and subscribe.destination == command.message.destination:
                    self.tag += 1
                    session.deliver(id, self.tag, command.message, False, subscribe.ack)
        if command.receipt is not None:
            session.receipt(command.receipt)
        if isinstance(command, Disconnect):
            connection.close()

    def writable(self, connection: Connection) -> None:
        self.events.append("writable")

    def closed(self, connection: Connection) -> None:
        self.events.append("closed")
