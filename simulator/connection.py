"""A client's connection to a simulated broker: commands one way, frames the other, in order, and no sockets.

For the engine it is connection and session in one. A frame counts as sent at the end of the turn of the loop in which
it was written, as with a real transport; it is noted at once, whether it arrives or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tandemmq.broker.core.commands import AckMode, ClientError, Command, Connect
from tandemmq.broker.core.memory import Holder, Memory
from tandemmq.simulator.kernel import World
from tandemmq.store.records.message import Message

if TYPE_CHECKING:
    from tandemmq.simulator.clients import Client
    from tandemmq.simulator.node import Node

#: Latency between client and broker, one way, in seconds.
LATENCY_SECONDS = 0.0005
#: Time after which a broker notices that the network to a client is gone.
BROKER_NOTICES_SECONDS = 5.0


class Receipt(NamedTuple):
    name: str


class Delivery(NamedTuple):
    subscription: str
    tag: int
    message_id: str


class Refusal(NamedTuple):
    """An ERROR frame."""

    receipt: str | None
    text: str


class HeartBeat(NamedTuple):
    pass


Frame = Receipt | Delivery | Refusal | HeartBeat


class Connection:
    """A client's connection to a simulated broker. ``epoch`` is the one in which the broker served it."""

    def __init__(self, world: World, server: Node, peer: Client, name: str, epoch: int, memory: Memory) -> None:
        self.client: Any = None
        self.holder = Holder(memory)
        self.survives_errors = self.can_pull = False
        self.certificate = None
        self.has_hung_up = False  # so no loss of a client counts against its messages
        self.id = name
        self.peer = name
        self.epoch = epoch
        self.is_open = True  # at the broker
        self.is_given_up = False  # by the client
        self.is_held = False
        self._world = world
        self._server = server
        self._to = peer
        self._frames: list[Frame] = []
        self._is_flush_due = False

    # ---- at the broker: core.client.Connection and core.delivery.Session

    @property
    def session(self) -> Connection:
        return self

    @property
    def is_writable(self) -> bool:
        return not self.holder.is_held_back

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """Do nothing: no client waits for CONNECTED here."""

    def receipt(self, receipt: str) -> None:
        self._frames.append(Receipt(receipt))

    def deliver(self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode) -> None:
        self._frames.append(Delivery(subscription_id, tag, message.message_id))

    def _never(self, *asked: object) -> None:
        raise AssertionError("no client of a simulation asks for this")

    tell_prefetch = close_consumer = nothing = drop_prepared = prepared = recovered = await_login = await_hang_up = (
        _never
    )

    def fail(self, error: ClientError) -> None:
        assert error.receipt is None or isinstance(error.receipt, str), "receipts are texts here"
        self._frames.append(Refusal(error.receipt, error.message))

    def stop_reading(self) -> None:
        """Do nothing: the login is decided at once."""

    def resume_reading(self) -> None:
        """Do nothing: reading never stopped."""

    def beat(self) -> None:
        self._frames.append(HeartBeat())
        self.touch()

    def touch(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._server.call_on_loop(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        frames, self._frames = self._frames, []
        if not self.is_open:
            return
        for frame in frames:
            self._server.sent(self, frame)
        self._carry(lambda: self._arrive(frames))

    def close(self, after_flush: bool = True) -> None:
        """Close the connection."""
        if after_flush:
            self._flush()
        if self.is_open:
            self.is_open = False
            self._server.closed(self)
            self._carry(self._hang_up)

    # ---- on the way

    def _carry(self, arrive: Callable[[], None]) -> None:
        """Carry frames. All take the same time, so they stay in order."""
        self._world.after(LATENCY_SECONDS, lambda: self._server.when_reachable(arrive))

    def _arrive(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self.is_given_up:
                return
            self._to.receive(frame)

    def _hang_up(self) -> None:
        if not self.is_given_up:
            self.is_given_up = True
            self._to.hung_up()

    # ---- at the client

    def send(self, *commands: Command) -> None:
        """Send commands to the broker, in one piece; they are lost if the way to the broker is gone for good."""

        def arrive() -> None:
            self._server.call_on_loop(take)

        def take() -> None:
            for command in commands:
                if self.is_open:
                    self._server.handle(self, command)

        self._carry(arrive)

    def give_up(self) -> None:
        """Close the connection at the client, whatever the broker knows of it."""
        if self.is_given_up:
            return
        self.is_given_up = True

        def notice() -> None:
            if self.is_open:
                self.is_open = False
                self._server.closed(self)

        delay = LATENCY_SECONDS if self._server.is_reachable else BROKER_NOTICES_SECONDS
        self._world.after(delay, lambda: self._server.call_on_loop(notice))

    def reset(self) -> None:
        """Reset the connection in the network: the client learns that at once, the broker after a while."""
        if not self.is_given_up:
            self.give_up()
            self._to.hung_up()

    def broke(self) -> None:
        """End the connection because the broker's process is gone."""
        self.is_open = False
        self._carry(self._hang_up)
