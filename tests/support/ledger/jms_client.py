"""The client of a story with ActiveMQ's JMS client over OpenWire, with XA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.interop.jms.jvm import JmsConnection, JmsSession, Jvm
from tests.support.interop.jms.jvm import Message as JmsMessage
from tests.support.ledger.client import Client, Message, Received, Subscription

# A message rejected once becomes a dead letter; after a rollback it does not. Each acknowledgement is confirmed.
_PLAIN = "jms.redeliveryPolicy.maximumRedeliveries=0&jms.sendAcksAsync=false&jms.watchTopicAdvisories=false"
_TRANSACTED = "jms.redeliveryPolicy.maximumRedeliveries=-1&jms.watchTopicAdvisories=false"


class JmsClient(Client):
    """One connection for calls without a transaction, one for transactions, one for branches, and one for each durable
    subscription in use."""

    is_jms = True

    def __init__(self, classes: str, port: int) -> None:
        self._url = f"tcp://127.0.0.1:{port}?"
        self._jvm = Jvm(Path(classes))
        self._plain = self._jvm.connect(self._url + _PLAIN)
        self._session = self._plain.session("INDIVIDUAL")
        self._open: list[JmsConnection | JmsSession] = []
        self._transactions: dict[str, tuple[JmsConnection, JmsSession]] = {}

    def close(self) -> None:
        """Close the connections; prepared branches stay prepared."""
        self._plain.close()
        self._jvm.close()

    def send(self, to: str, messages: Sequence[Message], transaction: str | None) -> list[str]:
        session = self._session if transaction is None else self._transactions[transaction][1]
        producer = session.producer(to)
        ids = []
        for message in messages:
            body = message.body.encode() if message.kind == "bytes" else message.body
            ids += producer.send(
                body, kind=message.kind, properties=message.properties,
                priority=message.priority, ttl=message.ttl_ms, persistent=message.persistent,
            )  # fmt: skip
        producer.close()
        return ids

    def begin(self, transaction: str, *, is_branch: bool = False) -> None:
        connection = self._jvm.connect(self._url + _TRANSACTED, xa=is_branch or None)
        session = connection.session("XA" if is_branch else "TRANSACTED")
        if is_branch:
            session.xa("start", transaction)
        self._transactions[transaction] = connection, session

    def prepare(self, transaction: str) -> None:
        """Prepare a branch, and close its connection: until the branch is committed or rolled back only the broker has
        its messages."""
        connection, session = self._transactions.pop(transaction)
        session.xa("end", transaction)
        session.xa("prepare", transaction)
        connection.close()

    def end(self, transaction: str, *, is_commit: bool, is_branch: bool = False) -> None:
        verb = "commit" if is_commit else "rollback"
        if is_branch:
            connection = self._jvm.connect(self._url + _TRANSACTED, xa=True)
            connection.session("XA").xa(verb, transaction)
        else:
            connection, session = self._transactions.pop(transaction)
            session.call(verb)
        connection.close()

    def receive(
        self, source: str, count: int, selector: str | None = None, subscription: Subscription | None = None,
        transaction: str | None = None,
    ) -> list[Received]:  # fmt: skip
        session = self._session
        if transaction is not None:
            session = self._transactions[transaction][1]
        elif subscription is not None:
            connection = self._jvm.connect(self._url + _PLAIN, clientId=subscription.client)
            session = connection.session("INDIVIDUAL")
            self._open.append(connection)
        else:
            session = self._plain.session("INDIVIDUAL")
            self._open.append(session)
        if subscription is not None:
            consumer = session.durable(subscription.topic, subscription.name, subscription.selector)
        else:
            consumer = session.consumer(f"{source}?consumer.prefetchSize={max(1, count)}", selector)
        found = [consumer.receive() for _ in range(count)]
        return [Received(each["id"], _text(each), each.properties, (session, each)) for each in found]

    def acknowledge(self, received: Received, transaction: str | None) -> None:
        if transaction is None:
            received.handle[1].acknowledge()

    def refuse(self, received: Received) -> None:
        received.handle[0].recover()

    def release(self) -> None:
        for each in self._open:
            each.close()
        self._open.clear()

    def subscribe(self, subscription: Subscription) -> None:
        self.receive(subscription.topic, 0, subscription=subscription)
        self.release()

    def unsubscribe(self, subscription: Subscription) -> None:
        connection = self._jvm.connect(self._url + _PLAIN, clientId=subscription.client)
        connection.session().unsubscribe(subscription.name)
        connection.close()


def _text(message: JmsMessage) -> str:
    body = message.body
    return body.decode() if isinstance(body, bytes) else body or ""
