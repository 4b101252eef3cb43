"""Random AMQP 1.0 client: sessions, links, credit, messages, outcomes and transactions in any order. Most frames are
valid; some have invalid names or numbers, or are sent at the wrong time."""

from __future__ import annotations

import random
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import code_of, write_composite
from tandemmq.broker.protocols.amqp.frames import EMPTY, FRAME_HEAD_BYTES, FrameCutter, frame_of
from tandemmq.broker.protocols.amqp.schema import UINT_MAX, Composite
from tandemmq.broker.protocols.amqp.types import Array, Described, Reader, Symbol, Timestamp, UInt, ULong, Uuid, encode
from tests.support.fuzz.books import DONE
from tests.support.fuzz.stomp_actor import SELECTORS

QUEUES: Final = ("s.0", "s.1", "queue://s.2", "queue://auto.0", "A", "GOOD.q", "queue://Consumer.A.VirtualTopic.v")
TOPICS: Final = ("topic://t.0", "topic://t.1", "topic://VirtualTopic.v", "topic://f.0")
UNUSUAL: Final = (
    None, "", "queue://", "s.*", "topic://>", "s.0,topic://t.0", "temp-queue://nowhere", "s.0?consumer.priority=1",
    "topic://ActiveMQ.Advisory.>", "ä" * 300, "queue://a\0b",
)  # fmt: skip
CONTAINERS: Final = ("c0", "c1", "c2", "c3")
NAMES: Final = ("a", "b", "d0", "d0|2", "d1", "d1|global", "n" * 500, "n" * 2_000)
NUMBERS: Final = (0, 1, 2, 7, 255, 1_000, UINT_MAX // 2, UINT_MAX - 1, UINT_MAX)
CHANNELS: Final = (0, 0, 0, 1, 2, 1_023, 1_024, 0xFFFF)
HANDLES: Final = (0, 1, 2, 3, 4, 5, 1_023, 1_024)
OUTCOMES: Final = (
    schema.Accepted(), schema.Accepted(), schema.Accepted(), schema.Released(), schema.Rejected(),
    schema.Rejected(schema.Error("app:no", "x" * 200)), schema.Modified(), schema.Modified(True),
    schema.Modified(False, True), schema.Modified(True, True, {Symbol("k"): "v"}), schema.Received(0, 0), None,
)  # fmt: skip
#: Codes of received performatives and of composites in them.
ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x12, 0x19)
ERROR, DECLARED, OUTCOME = 0x1D, 0x33, 0x44
DECLARE, DISCHARGE = ULong(0x31), ULong(0x32)
#: Share of invalid choices.
INVALID: Final = 0.005
#: Number of deliveries and transactions that the client remembers.
KEPT_MAX: Final = 200


@dataclass(slots=True)
class Link:
    is_receiver: bool
    is_coordinator: bool = False
    credit: int = 0
    delivery_count: int = 0
    is_in_message: bool = False  # more transfers of the message follow


@dataclass(slots=True)
class Channel:
    links: dict[int, Link] = field(default_factory=dict)
    next_delivery_id: int = 0
    transfers: int = 0  # number of received ones
    unsettled: list[int] = field(default_factory=list)


class AmqpActor:
    """One connection over an open socket. The constructor logs in and opens the connection; ``act`` sends a frame."""

    def __init__(self, peer: socket.socket, dice: random.Random, login: tuple[str | None, str | None]) -> None:
        self._peer = peer
        self._dice = dice
        self._cutter = FrameCutter(1 << 24)
        self._channels: dict[int, Channel] = {}
        self._transactions: list[bytes] = []
        self._nodes: list[str] = []  # addresses of dynamic nodes
        self._acts: list[Callable[[], None]] = [
            self._begin, self._attach, self._attach, self._attach, self._flow, self._flow, self._flow, self._send,
            self._send, self._send, self._send, self._dispose, self._dispose, self._dispose, self._dispose,
            self._detach, self._end, self._transact, self._transact, self._send_unexpected, self._beat, self._close,
        ]  # fmt: skip
        self._log_in(*login)

    def act(self) -> None:
        """Send a random frame, and handle received ones. Raises ConnectionError if the broker has closed the
        connection."""
        self._dice.choice(self._acts)()
        self._take(0.01)

    # ---- bytes

    def _write(self, performative: Composite, payload: bytes = b"", *, channel: int = 0, type: int = 0) -> None:
        DONE[f"amqp {_name(performative)}"] += 1
        self._peer.sendall(frame_of(channel, write_composite(performative) + payload, type))

    def _take(self, seconds: float) -> None:
        while select.select([self._peer], [], [], seconds)[0]:
            data = self._peer.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._cutter.feed(data)
            while (frame := self._cutter.next_frame()) is not None:
                if frame.body:
                    reader = Reader(frame.body)
                    self._handle(frame.channel, reader.value())
            seconds = 0.0

    def _handle(self, number: int, performative: Described) -> None:
        code, fields = code_of(performative.descriptor), [*performative.value, *[None] * 14]
        for each in fields:
            if isinstance(each, Described) and code_of(each.descriptor) == ERROR:
                DONE[f"amqp: {each.value[0]}"] += 1
        if code == OUTCOME and fields[0] != 0:
            raise ConnectionError(f"refused: the login, with {fields[0]}")
        channel = self._channels.get(number)
        if channel is None:
            return
        handle = fields[4] if code == FLOW else fields[0]
        link = channel.links.get(handle) if isinstance(handle, int) else None
        if code == TRANSFER:
            channel.transfers += 1
            if link is not None and fields[1] is not None:
                link.delivery_count += 1
                channel.unsettled = [*channel.unsettled[-KEPT_MAX:], int(fields[1])]
        elif code == FLOW and link is not None and not link.is_receiver:
            link.credit = fields[6] or 0
        elif code == DISPOSITION and isinstance(fields[4], Described) and code_of(fields[4].descriptor) == DECLARED:
            self._transactions = [*self._transactions[-KEPT_MAX:], bytes(fields[4].value[0])]
        elif code == ATTACH and isinstance(fields[5], Described) and isinstance(fields[5].value[0], str):
            self._nodes = [*self._nodes[-KEPT_MAX:], str(fields[5].value[0])]
        elif code == DETACH:
            channel.links.pop(handle, None)
        elif code == END:
            del self._channels[number]

    # ---- login and open

    def _log_in(self, user: str | None, password: str | None) -> None:
        """Log in and open. In half of the cases, wait for the answers."""
        dice = self._dice
        self._peer.sendall(frames.SASL)
        init = schema.SaslInit("ANONYMOUS")
        if user is not None:
            init = schema.SaslInit("PLAIN", f"\0{user}\0{password}".encode())
        elif dice.random() < 0.1:
            init = schema.SaslInit(dice.choice(("EXTERNAL", "SCRAM-SHA-256", "PLAIN", "")), dice.choice((None, b"x")))
        waits, is_invalid = dice.random() < 0.5, dice.random() < INVALID
        self._write(init, type=1)
        if waits:
            self._pass_header()
        self._peer.sendall(frames.AMQP)
        self._write(
            schema.Open(
                dice.choice((*CONTAINERS, f"c{dice.random()}")),
                max_frame_size=511 if is_invalid else dice.choice((UINT_MAX, UINT_MAX, 4_096, 512)),
                idle_time_out=1 if is_invalid else dice.choice((None, None, None, 200, 1_000, 60_000)),
                desired_capabilities=dice.choice(((), (), (), ("sole-connection-for-container",))),
                properties={Symbol("sole-connection-enforcement-policy"): UInt(1)} if dice.random() < 0.1 else None,
            )
        )
        if not waits:
            self._pass_header()
        self._pass_header()
        self._begin()

    def _pass_header(self) -> None:
        """Wait for the next protocol header; after the SASL header, also for the outcome."""
        while (header := self._cutter.header()) is None:
            data = self._peer.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._cutter.feed(data)
        if header[:4] != b"AMQP":
            raise ConnectionError("a header is expected")
        if header == frames.SASL:
            self._await_outcome()

    def _await_outcome(self) -> None:
        for _ in range(2):  # the mechanisms, and the outcome
            while (frame := self._cutter.next_frame()) is None:
                data = self._peer.recv(1 << 16)
                if not data:
                    raise ConnectionError("the broker closed the connection")
                self._cutter.feed(data)
            self._handle(0, Reader(frame.body).value())

    # ---- actions

    def _channel(self) -> int:
        """Return a channel, usually one with a session."""
        if not self._channels:
            self._begin()
        return self._dice.choice(list(self._channels) if self._dice.random() >= INVALID else CHANNELS)

    def _link(self, *, is_receiver: bool) -> tuple[int, int] | None:
        """Return a channel and a handle, usually of a link in this direction; None if there is no such link."""
        able = [
            (number, handle)
            for number, channel in self._channels.items()
            for handle, link in channel.links.items()
            if link.is_receiver is is_receiver
        ]
        if self._dice.random() < INVALID:
            return self._channel(), self._dice.choice(HANDLES)
        return self._dice.choice(able) if able else None

    def _begin(self) -> None:
        dice = self._dice
        free = [each for each in CHANNELS[:-2] if each not in self._channels]
        if not free:
            return
        number = dice.choice(free if dice.random() >= INVALID else CHANNELS)
        self._channels[number] = Channel()
        window = dice.choice((0, 1, 5, 2_048, UINT_MAX // 2, UINT_MAX // 2))
        begin = schema.Begin(next_outgoing_id=dice.choice(NUMBERS), incoming_window=window, outgoing_window=100)
        self._write(begin, channel=number)

    def _address(self) -> Any:
        chance = self._dice.random()
        if chance < 0.1:
            return self._dice.choice(UNUSUAL)
        if chance < 0.2 and self._nodes:
            return self._dice.choice(self._nodes)
        return self._dice.choice(QUEUES if chance < 0.7 else TOPICS)

    def _attach(self) -> None:
        dice, number = self._dice, self._channel()
        channel = self._channels.get(number, Channel())
        free = [each for each in HANDLES[:-2] if each not in channel.links]
        if not free:
            return
        handle = dice.choice(free if dice.random() >= INVALID else HANDLES)
        is_receiver = dice.random() < 0.5
        is_dynamic = dice.random() < 0.1
        address = None if is_dynamic else self._address()
        source: Any = schema.Source(address="here")
        target: Any = schema.Target(address=address, dynamic=is_dynamic)
        if is_receiver:
            source = schema.Source(
                address=address, dynamic=is_dynamic,
                durable=dice.choice((0, 0, 0, 2)),
                expiry_policy=Symbol(dice.choice(("session-end", "never", "link-detach"))),
                distribution_mode=dice.choice((None, None, None, "copy")),
                filter=self._filter(),
                default_outcome=dice.choice(OUTCOMES),
                capabilities=dice.choice(((), (), ("topic",), ("shared",), ("shared", "global"))),
            )  # fmt: skip
        is_coordinator = not is_receiver and dice.random() < 0.15
        if is_coordinator:
            target = schema.Coordinator(("amqp:local-transactions",))
        self._write(
            schema.Attach(
                name=dice.choice(NAMES) if dice.random() < 0.5 else f"l{dice.random()}",
                handle=handle, role=is_receiver, snd_settle_mode=dice.choice((0, 1, 2, 2)),
                rcv_settle_mode=dice.choice((0, 0, 1)), source=dice.choice((*[source] * 19, None)),
                target=dice.choice((*[target] * 19, None)),
                initial_delivery_count=dice.choice(NUMBERS) if dice.random() < 0.3 else 0,
                unsettled=dice.choice((None, None, None, {b"t": None})),
            ),
            channel=number,
        )  # fmt: skip
        channel.links[handle] = Link(is_receiver, is_coordinator)

    def _filter(self) -> dict[Any, Any] | None:
        dice = self._dice
        if dice.random() < 0.7:
            return None
        selector = Described(
            Symbol("apache.org:selector-filter:string"), dice.choice((*SELECTORS, "a == b", "x" * 999))
        )
        no_local = Described(ULong(0x468C00000003), [])
        return {Symbol("s"): dice.choice((selector, no_local, 7, Described(Symbol("x:y"), None)))}

    def _flow(self) -> None:
        dice = self._dice
        number, handle = self._link(is_receiver=dice.random() < 0.9) or (self._channel(), None)
        channel = self._channels.get(number, Channel())
        link = Link(True) if handle is None else channel.links.get(handle, Link(True))
        is_of_link = dice.random() < 0.8
        is_valid = dice.random() < 0.95
        self._write(
            schema.Flow(
                next_incoming_id=channel.transfers if is_valid else dice.choice((None, *NUMBERS)),
                incoming_window=dice.choice((0, 1, 10, 2_048, UINT_MAX // 2)),
                next_outgoing_id=dice.choice(NUMBERS),
                outgoing_window=100,
                handle=handle if is_of_link else None,
                delivery_count=link.delivery_count if is_valid else dice.choice(NUMBERS),
                link_credit=dice.choice((0, 1, 10, 100, 1_000, UINT_MAX)) if is_of_link else None,
                drain=dice.random() < 0.2,
                echo=dice.random() < 0.2,
            ),
            channel=number,
        )

    def _send(self) -> None:
        """Send a message in one or several transfers. Sometimes the last one is sent later, or aborts the message."""
        dice = self._dice
        found = self._link(is_receiver=False)
        if found is None:
            return
        number, handle = found
        channel = self._channels.get(number, Channel())
        link = channel.links.get(handle, Link(False))
        if link.credit <= 0 and dice.random() >= INVALID:
            return
        encoded = self._message()
        state = None
        if self._transactions and dice.random() < 0.3:
            state = schema.TransactionalState(dice.choice(self._transactions))
        first = schema.Transfer(
            handle=handle, delivery_id=channel.next_delivery_id, delivery_tag=dice.choice((b"t", b"", b"\0\xff", None)),
            message_format=dice.choice((0, None, 1, UINT_MAX)), settled=dice.choice((None, False, True)), state=state,
        )  # fmt: skip
        if link.is_in_message:
            first = schema.Transfer(handle=handle, aborted=dice.random() < 0.3)
        else:
            channel.next_delivery_id = (channel.next_delivery_id + 1) & UINT_MAX
            link.credit -= 1
        pieces = [encoded[at : at + 4_000] for at in range(0, len(encoded), 4_000)] or [b""]
        if dice.random() < 0.1:
            pieces = [encoded[:3], b"", encoded[3:]]
        ends = dice.random() < 0.9
        for at, piece in enumerate(pieces):
            transfer = first if at == 0 else schema.Transfer(handle=handle)
            transfer.more = at + 1 < len(pieces) or not ends
            self._write(transfer, piece, channel=number)
        link.is_in_message = not ends

    def _message(self) -> bytes:
        dice = self._dice
        sections = []
        if dice.random() < 0.5:
            sections.append(write_composite(schema.Header(
                durable=dice.choice((None, True, True, False)), priority=dice.choice((None, 0, 9, 255)),
                ttl=dice.choice((None, None, 0, 1, 50, UINT_MAX)), delivery_count=dice.choice((None, 0, 7, UINT_MAX)),
            )))  # fmt: skip
        if dice.random() < 0.2:
            key = dice.choice(("x-opt-delivery-delay", "x-opt-delivery-time", "x-opt-a", "x-opt-delivery-cron"))
            sections.append(_section(0x72, {Symbol(key): dice.choice((1, 200, -1, Timestamp(1 << 40), "x"))}))
        if dice.random() < 0.5:
            sections.append(write_composite(schema.Properties(
                message_id=dice.choice((None, "m", ULong(7), Uuid(bytes(16)), b"\xff")), to=self._address(),
                subject=dice.choice((None, "red")), reply_to=dice.choice((None, None, self._address())),
                content_type=dice.choice((None, "text/plain", "application/x-java-serialized-object")),
                absolute_expiry_time=dice.choice((None, None, 0, 1, -1, 1 << 42)),
                group_id=dice.choice((None, None, "g0", "g1")), group_sequence=dice.choice((None, 0, UINT_MAX)),
                user_id=dice.choice((None, None, b"good")),
            )))  # fmt: skip
        if dice.random() < 0.3:
            values = (7, "red", True, None, Uuid(bytes(16)), Array((1, 2)), [1, ["x"]], {"a": 1}, b"x" * 5_000)
            keys = ("color", "number", "JMSXGroupID", "AMQ_SCHEDULED_DELAY", "JMS_AMQP_NATIVE", "k" * 300)
            sections.append(_section(0x74, {key: dice.choice(values) for key in dice.sample(keys, 2)}))
        body = dice.randrange(6)
        if body == 0:
            sections += [_section(0x75, b"x" * dice.choice((0, 10, 50_000)))] * dice.choice((1, 1, 3))
        elif body == 1:
            sections.append(_section(0x76, [1, "x", None, [2]]))
        elif body < 5:
            contents = ("text", "ä" * 2_000, None, b"\xff", {"a": 1, "b": b"x"}, [1, 2.5], 7, Described(ULong(7), [1]))
            sections.append(_section(0x77, dice.choice(contents)))
        if dice.random() < 0.1:
            sections.append(_section(0x78, {Symbol("crc"): UInt(1)}))
        if dice.random() < 0.05:
            dice.shuffle(sections)
        return b"".join(sections)

    def _dispose(self) -> None:
        dice = self._dice
        number = self._channel()
        known = self._channels.get(number, Channel()).unsettled
        first, last = dice.choice(NUMBERS), dice.choice((None, *NUMBERS))
        if known and dice.random() < 0.95:
            start = dice.randrange(len(known))
            stop = dice.randrange(start, len(known))
            first, last = known[start], dice.choice((None, known[stop]))
            if dice.random() < 0.7:
                del known[start : stop + 1]
        state: Any = dice.choice(OUTCOMES)
        if self._transactions and dice.random() < 0.3:
            state = schema.TransactionalState(dice.choice(self._transactions), state)
        settled = dice.random() < 0.7
        disposition = schema.Disposition(
            role=dice.random() < 0.95, first=first, last=last, settled=settled, state=state
        )
        self._write(disposition, channel=number)

    def _detach(self) -> None:
        dice = self._dice
        found = self._link(is_receiver=dice.random() < 0.5)
        if found is None:
            return
        number, handle = found
        error = dice.choice((None, None, schema.Error("amqp:internal-error", "x")))
        self._write(schema.Detach(handle, dice.random() < 0.7, error), channel=number)
        self._channels.get(number, Channel()).links.pop(handle, None)

    def _end(self) -> None:
        if self._dice.random() < 0.5:
            number = self._channel()
            self._write(schema.End(), channel=number)
            self._channels.pop(number, None)

    def _transact(self) -> None:
        """Declare a transaction, or discharge one."""
        dice = self._dice
        able = [
            (number, handle)
            for number, channel in self._channels.items()
            for handle, link in channel.links.items()
            if link.is_coordinator and link.credit > 0
        ]
        if not able:
            return
        number, handle = dice.choice(able)
        channel = self._channels[number]
        request = Described(DECLARE, dice.choice(([], [], [b"global"])))
        if self._transactions and dice.random() < 0.5:
            id = dice.choice((*self._transactions, b"\0", b"x" * 40))
            request = Described(DISCHARGE, [id, dice.random() < 0.4])
            if id in self._transactions:
                self._transactions.remove(id)
        transfer = schema.Transfer(
            handle=handle, delivery_id=channel.next_delivery_id, delivery_tag=b"t", settled=dice.random() < 0.1
        )
        channel.next_delivery_id = (channel.next_delivery_id + 1) & UINT_MAX
        channel.links[handle].credit -= 1
        self._write(transfer, _section(0x77, request), channel=number)

    def _send_unexpected(self) -> None:
        """In one of twenty calls, send a performative at the wrong time, or one that only a broker sends."""
        if self._dice.random() < 0.95:
            return
        unexpected = (
            schema.Open("again"), schema.SaslInit("PLAIN"), schema.SaslOutcome(0), schema.Accepted(), schema.Header(),
            schema.Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1),
        )  # fmt: skip
        self._write(self._dice.choice(unexpected), channel=self._channel(), type=self._dice.choice((0, 0, 1)))

    def _beat(self) -> None:
        self._peer.sendall(EMPTY[: FRAME_HEAD_BYTES - 2] + self._dice.choice(CHANNELS).to_bytes(2, "big"))

    def _close(self) -> None:
        """In one of twenty calls, close the connection."""
        if self._dice.random() < 0.05:
            self._write(schema.Close())
            self._take(1.0)


def _name(performative: Composite) -> str:
    return type(performative).__name__.lower()


def _section(code: int, content: Any) -> bytes:
    return b"\0" + encode(ULong(code)) + encode(content)
