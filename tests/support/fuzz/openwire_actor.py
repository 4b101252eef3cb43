"""An OpenWire client that makes actions allowed by the protocol, and records what it may rely on."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, MessageId, ProducerId, SessionId
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.acceptance.openwire_wire import OpenWire, Refused, queue, topic
from tests.support.ci.verdicts import verdict
from tests.support.fuzz.books import DONE, TRACE, Books, Delivered, Known, Work, acknowledge, sending
from tests.support.fuzz.stomp_actor import QUEUES, SELECTORS
from tests.support.fuzz.stomp_client import body_of

OTHERS = (
    queue("auto.0"), topic("t.0"), topic("t.1"), topic("VirtualTopic.v"), queue("Consumer.A.VirtualTopic.v"),
    queue("a b:c%20\u00e9"), queue("x,topic://t.0"), queue("ActiveMQ.DLQ"), topic("ActiveMQ.Advisory.Queue"),
    topic("ActiveMQ.Advisory.Consumer.Queue.>"), topic("ActiveMQ.Advisory.TempQueue,topic://ActiveMQ.Advisory.TempTopic"),
)  # fmt: skip
PATTERNS = (queue("s.*"), queue("s.>"), queue("s.0,s.1"))
KINDS = (schema.ActiveMQTextMessage, schema.ActiveMQBytesMessage)
Transaction = LocalTransactionId | XaTransactionId


@dataclass(slots=True)
class Consumer:
    destination: Destination
    is_browser: bool
    prefetch: int
    unacknowledged: list[Delivered] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    work: Work
    is_ended: bool = False
    is_prepared: bool = False


class Traced(OpenWire):
    """A connection that records all commands in both directions."""

    def read(self) -> Any:
        heard = super().read()
        TRACE.append(f"{self.id} < {shown(heard)}")
        return heard

    def ask(self, make: Any, **fields: Any) -> Any:
        TRACE.append(f"{self.id} > {make.__name__} {fields}")
        return super().ask(make, **fields)


def shown(command: Any) -> str:
    if isinstance(command, schema.MessageDispatch) and command.message is not None:
        content = command.message.content or b""
        return f"MessageDispatch {command.consumer_id} {command.message.destination} {body_of(content)}"
    return repr(command)[:300]


class OpenWireActor:
    """``is_over``: the broker or the client closed the connection."""

    def __init__(self, client: OpenWire, books: Books, client_id: str | None) -> None:
        self.client = client
        self.is_over = False
        self._books = books
        self._client_id = client_id
        self._numbers = 0
        self._sessions = [SessionId(client.id, 1)]
        self._producers: list[ProducerId] = []
        self._consumers: dict[ConsumerId, Consumer] = {}
        self._temporary: list[Destination] = []
        self._locals: dict[Transaction, Work] = {}
        self._branches: dict[Transaction, Branch] = {}
        self._acts: list[Callable[[random.Random], None]] = [
            self.send, self.send, self.send, self.consume, self.consume, self.acknowledge, self.acknowledge,
            self.acknowledge, self.local, self.local, self.branch, self.branch, self.session, self.producer,
            self.release, self.temporary, self.pull, self.control, self.delete, self.forget_durable, self.mistake,
        ]  # fmt: skip

    @classmethod
    def connect(
        cls, port: int, books: Books, user: str | None, password: str | None, client_id: str | None
    ) -> OpenWireActor | None:
        """Connect; return None if the client id is in use."""
        client = Traced(port)
        try:
            client.connect(user, password, **({} if client_id is None else {"client_id": client_id}))
        except Refused:
            client.close()
            return None
        return cls(client, books, client_id)

    @classmethod
    def roll_back_all(cls, port: int, books: Books) -> None:
        """Roll back the remaining prepared branches."""
        client = Traced(port).connect()
        for branch in client.transact(schema.TransactionType.RECOVER, None).data:
            client.transact(schema.TransactionType.ROLLBACK, branch)
        client.close()

    def act(self, dice: random.Random) -> None:
        chosen = dice.choice(self._acts)
        try:
            chosen(dice)
            DONE[f"openwire {chosen.__name__}"] += 1
        except Refused as error:
            DONE[f"openwire {chosen.__name__}: {str(error)[:60]}"] += 1
            if error.kind in ("IOException", "EOFException"):
                self.close()
        if not self.is_over:
            self._take_in()

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers + 100

    # ---- sending

    def send(self, dice: random.Random) -> None:
        if not self._producers:
            self.producer(dice)
        producer = dice.choice(self._producers)
        names = dice.choice([(QUEUES[0],), (QUEUES[1],), (QUEUES[2],), QUEUES[:2], QUEUES])
        is_counted = dice.random() < 0.7
        now = int(time.time() * 1000)
        fields: dict[str, Any] = {
            "persistent": dice.random() < 0.8,
            "expiration": dice.choice((0, 0, 0, 0, 0, now - 1000, now + 50, now + 10_000)),
            "priority": dice.choice((4, 4, 0, 9)),
            "timestamp": now,
        }
        if dice.random() < 0.1:
            fields["reply_to"] = dice.choice(OTHERS)
        if dice.random() < 0.1:
            fields["group_id"] = dice.choice(("g1", "g2"))
        is_spare = not is_counted or not fields["persistent"] or fields["expiration"] != 0
        body, copies = self._books.new(names if is_counted else (), is_spare=is_spare)
        others = (*OTHERS, *self._temporary)
        destination = queue(",".join(names)) if is_counted else dice.choice(others)
        content = body.encode() + b" " * dice.choice((0, 10, 3000))
        kind = dice.choice(KINDS)
        if kind is schema.ActiveMQTextMessage:
            content = struct.pack(">i", len(content)) + content
        transaction, work = self._transaction(dice)
        with sending(copies, work, Refused):
            self.client.ask(
                kind, producer_id=producer, destination=destination, content=content, transaction_id=transaction,
                message_id=MessageId(None, producer, self._next(), 0), **fields,
            )  # fmt: skip

    def producer(self, dice: random.Random) -> None:
        if not self._sessions:
            self.session(dice)
        session = dice.choice(self._sessions)
        made = ProducerId(self.client.id, self._next(), session.value)
        self.client.ask(schema.ProducerInfo, producer_id=made, destination=None)
        self._producers.append(made)

    # ---- receiving

    def consume(self, dice: random.Random) -> None:
        if not self._sessions:
            self.session(dice)
        session = dice.choice(self._sessions)
        counted = [queue(name) for name in QUEUES]
        destination = dice.choice([*counted, *counted, *PATTERNS, *OTHERS, *self._temporary])
        id = ConsumerId(self.client.id, session.value, self._next())
        fields: dict[str, Any] = {"prefetch_size": dice.choice((0, 1, 5, 1000))}
        if destination in counted and dice.random() < 0.15:
            fields["browser"] = True
        if dice.random() < 0.2:
            fields["selector"] = dice.choice(SELECTORS)
        for name in ("exclusive", "retroactive", "no_local", "dispatch_async"):
            fields[name] = dice.random() < 0.1
        fields["priority"] = dice.choice((0, 0, 0, 7, -1))
        if destination.name.startswith("t.") and self._client_id is not None and dice.random() < 0.6:
            fields["subscription_name"] = dice.choice(("d0", "d1"))
        self._consumers[id] = Consumer(destination, fields.get("browser", False), fields["prefetch_size"])
        try:
            self.client.ask(schema.ConsumerInfo, consumer_id=id, destination=destination, **fields)
        except Refused:
            del self._consumers[id]
            raise

    def acknowledge(self, dice: random.Random) -> None:
        able = [
            (id, known) for id, known in self._consumers.items() if known.unacknowledged and not self._is_held(known)
        ]
        if not able:
            return
        id, known = dice.choice(able)
        type = dice.choice((*[AckType.STANDARD] * 3, *[AckType.INDIVIDUAL] * 3, AckType.DELIVERED, AckType.POISON,
                            AckType.REDELIVERED, AckType.EXPIRED))  # fmt: skip
        at = 0 if type in (AckType.POISON, AckType.EXPIRED) else dice.randrange(len(known.unacknowledged))
        covered = known.unacknowledged[: at + 1] if type != AckType.INDIVIDUAL else [known.unacknowledged[at]]
        transaction, work = self._transaction(dice) if type not in (AckType.POISON, AckType.EXPIRED) else (None, None)
        copies = [each.copy for each in covered if not known.is_browser]
        is_taking = type in (AckType.STANDARD, AckType.INDIVIDUAL)
        if type in (AckType.POISON, AckType.EXPIRED):
            for copy in copies:
                if copy is not None:
                    copy.was_moved = True
                    copy.is_spare |= type == AckType.EXPIRED  # such messages are kept only if a policy demands it
        elif is_taking and work is None:
            acknowledge(copies, Known.PERHAPS)
        first, last = (each.frame.message.message_id for each in (covered[0], covered[-1]))
        try:
            self.client.ask(
                schema.MessageAck, destination=covered[-1].frame.destination, consumer_id=id, ack_type=int(type),
                first_message_id=first, last_message_id=last, message_count=len(covered), transaction_id=transaction,
            )  # fmt: skip
        except Refused as error:
            raise AssertionError(f"the acknowledgement of a delivery was refused: {error}") from error
        if is_taking or type in (AckType.POISON, AckType.EXPIRED):
            known.unacknowledged[:] = [each for each in known.unacknowledged if each not in covered]
        if is_taking and work is None:
            acknowledge(copies, Known.YES)
        elif is_taking and work is not None and not known.is_browser:
            work.acknowledged.append((known.unacknowledged, covered))

    def _is_held(self, known: Consumer) -> bool:
        """Return whether a transaction has acknowledged some of its deliveries: they count in its ranges until the
        transaction ends, and no Java client acknowledges outside it in the meantime."""
        works = [*self._locals.values(), *(branch.work for branch in self._branches.values())]
        return any(waiting is known.unacknowledged for work in works for waiting, _ in work.acknowledged)

    def pull(self, dice: random.Random) -> None:
        able = [(id, known) for id, known in self._consumers.items() if known.prefetch == 0]
        if able:
            id, known = dice.choice(able)
            timeout = dice.choice((-1, 0, 20))
            self.client.ask(schema.MessagePull, consumer_id=id, destination=known.destination, timeout=timeout)

    def control(self, dice: random.Random) -> None:
        if self._consumers:
            id, known = dice.choice(list(self._consumers.items()))
            prefetch = dice.choice((1, 5, 1000))
            if known.prefetch:
                self.client.ask(
                    schema.ConsumerControl, consumer_id=id, destination=known.destination, prefetch=prefetch
                )

    @verdict
    def _take_in(self) -> None:
        dispatched, self.client.dispatched = self.client.dispatched, []
        for each in dispatched:
            known = self._consumers.get(each.consumer_id)  # type: ignore[arg-type]
            if each.message is None or known is None:
                continue
            target = each.message.destination
            assert target is not None, "a message has a destination"
            name = target.name if target.kind is DestinationKind.QUEUE else ""
            copy = self._books.of(body_of(each.message.content or b""), name)
            if copy is not None and not known.is_browser:
                assert copy.sent is not Known.NO, f"{copy} was never committed"
                assert copy.is_spare or copy.gone is not Known.YES, f"{copy} is back"
            known.unacknowledged.append(Delivered(each, copy))

    # ---- transactions

    def _transaction(self, dice: random.Random) -> tuple[Transaction | None, Work | None]:
        able = {**self._locals, **{id: branch.work for id, branch in self._branches.items() if not branch.is_ended}}
        if not able or dice.random() < 0.5:
            return None, None
        id = dice.choice(list(able))
        return id, able[id]

    def local(self, dice: random.Random) -> None:
        if not self._locals or (len(self._locals) < 2 and dice.random() < 0.4):
            id = LocalTransactionId(self.client.id, self._next())
            self.client.transact(schema.TransactionType.BEGIN, id)
            self._locals[id] = Work()
            return
        chosen = dice.choice(list(self._locals))
        work = self._locals.pop(chosen)
        if dice.random() < 0.6:
            work.end(Known.PERHAPS)
            self.client.transact(schema.TransactionType.COMMIT_ONE_PHASE, chosen)
            work.end(Known.YES)
        else:
            work.end(Known.NO)
            self.client.transact(schema.TransactionType.ROLLBACK, chosen)

    def branch(self, dice: random.Random) -> None:
        types = schema.TransactionType
        if not self._branches or (len(self._branches) < 2 and dice.random() < 0.3):
            id = XaTransactionId(1, self.client.id.encode(), bytes([self._next() % 256, self._next() % 256]))
            self.client.transact(types.BEGIN, id)
            self._branches[id] = Branch(Work())
            return
        if dice.random() < 0.1:
            self.client.transact(types.RECOVER, None)
            return
        chosen = dice.choice(list(self._branches))
        branch = self._branches[chosen]
        if not branch.is_ended:
            self.client.transact(types.END, chosen)
            branch.is_ended = True
        elif branch.is_prepared:
            self._decide(chosen, branch, types.COMMIT_TWO_PHASE if dice.random() < 0.6 else types.ROLLBACK)
        elif dice.random() < 0.6:
            answer = self.client.transact(types.PREPARE, chosen)
            branch.is_prepared = True
            if answer.result == 3:  # XA_RDONLY: there is nothing to commit
                del self._branches[chosen]
        else:
            self._decide(chosen, branch, types.COMMIT_ONE_PHASE if dice.random() < 0.6 else types.ROLLBACK)

    def _decide(self, id: Transaction, branch: Branch, how: schema.TransactionType) -> None:
        del self._branches[id]
        is_committed = how is not schema.TransactionType.ROLLBACK
        branch.work.end(Known.PERHAPS if is_committed else Known.NO)
        self.client.transact(how, id)
        if is_committed:
            branch.work.end(Known.YES)

    # ---- consumers, producers and sessions

    def session(self, dice: random.Random) -> None:
        if len(self._sessions) < 3:
            made = SessionId(self.client.id, self._next())
            self.client.ask(schema.SessionInfo, session_id=made)
            self._sessions.append(made)
            return
        gone = self._sessions.pop(dice.randrange(len(self._sessions)))
        self._producers = [
            each for each in self._producers if each.value != gone.value and each.session_id != gone.value
        ]
        self._forget({id for id in self._consumers if id.session_id == gone.value})
        self.client.ask(schema.RemoveInfo, object_id=gone)

    def release(self, dice: random.Random) -> None:
        if self._producers and dice.random() < 0.3:
            self.client.ask(schema.RemoveInfo, object_id=self._producers.pop())
        elif self._consumers:
            id = dice.choice(list(self._consumers))
            self._forget({id})
            self.client.ask(schema.RemoveInfo, object_id=id, last_delivered_sequence_id=dice.choice((-2, -1, 0)))

    def _forget(self, gone: set[ConsumerId]) -> None:
        self._consumers = {id: known for id, known in self._consumers.items() if id not in gone}

    def temporary(self, dice: random.Random) -> None:
        if self._temporary and dice.random() < 0.5:
            self._change(self._temporary.pop(), schema.DestinationOperation.REMOVE)
            return
        kind = dice.choice((DestinationKind.TEMP_QUEUE, DestinationKind.TEMP_TOPIC))
        made = Destination(kind, f"{self.client.id}:{self._next()}")
        self._change(made, schema.DestinationOperation.ADD)
        self._temporary.append(made)

    def delete(self, dice: random.Random) -> None:
        if dice.random() < 0.7:
            return
        name = dice.choice((*QUEUES, "auto.0", "auto.1"))
        self._books.queue_was_deleted(name)
        self._change(queue(name), schema.DestinationOperation.REMOVE)

    def _change(self, destination: Destination, operation: schema.DestinationOperation) -> None:
        self.client.ask(
            schema.DestinationInfo, connection_id=ConnectionId(self.client.id), destination=destination,
            operation_type=int(operation),
        )  # fmt: skip

    def forget_durable(self, dice: random.Random) -> None:
        self.client.ask(
            schema.RemoveSubscriptionInfo, connection_id=ConnectionId(self.client.id), client_id=self._client_id,
            subscription_name=dice.choice(("d0", "d1")),
        )  # fmt: skip

    # ---- commands that are refused or have little effect

    def mistake(self, dice: random.Random) -> None:
        types = schema.TransactionType
        nobody = LocalTransactionId(self.client.id, 0)
        acts: list[Callable[[], Any]] = [
            lambda: self.client.transact(types.COMMIT_ONE_PHASE, nobody),
            lambda: self.client.transact(types.ROLLBACK, XaTransactionId(1, b"none", b"none")),
            lambda: self.client.transact(types.FORGET, XaTransactionId(1, b"none", b"none")),
            lambda: self.client.ask(schema.RemoveInfo, object_id=ConsumerId(self.client.id, 1, 0)),
            lambda: self.client.ask(schema.RemoveInfo, object_id=SessionId(self.client.id, 99)),
            lambda: self.client.ask(schema.ConsumerControl, consumer_id=ConsumerId(self.client.id, 1, 0), prefetch=1),
            lambda: self.client.ask(
                schema.ConsumerInfo, consumer_id=ConsumerId(self.client.id, 1, 0), destination=queue("auto.0"),
                selector="nonsense (",
            ),
            lambda: self.client.ask(
                schema.MessagePull, consumer_id=ConsumerId(self.client.id, 1, 0), destination=queue("auto.0"), timeout=1
            ),
            lambda: self.client.ask(schema.FlushCommand),
        ]  # fmt: skip
        dice.choice(acts)()

    # ---- the end

    def leave(self, how: str) -> None:
        if how == "goodbye":
            self.client.ask(schema.RemoveInfo, object_id=ConnectionId(self.client.id))
            self.client.socket.sendall(self.client.wire.encode(schema.ShutdownInfo()))
        elif how == "half":
            self.client.socket.shutdown(socket.SHUT_WR)
            time.sleep(0.05)
        elif how == "reset":
            self.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the connection: transactions that are neither committed nor prepared are rolled back."""
        self.is_over = True
        self.client.close()
        for work in self._locals.values():
            work.end(Known.NO)
        for branch in self._branches.values():
            branch.work.end(Known.NO)  # the prepared ones too, at the end (roll_back_all)
        self._locals, self._branches = {}, {}
