"""Messages, acknowledgements and transactions when a connection breaks, frame by frame."""

from __future__ import annotations

import asyncio

import pytest

from tandemmq.client import BrokerError, Client, Closed, InDoubt, NoBroker, TransactionLost
from tests.support.client.scripted_broker import Frame, Peer, Script, ScriptedBroker, confirming

FAST = "initialReconnectDelay=1&maxReconnectDelay=20"
OTHER = "SomeBroker/1.0"


class Notes:
    """Every frame that each connection sent, and scripts that write them down."""

    def __init__(self) -> None:
        self.frames: list[list[Frame]] = []

    def script(self, *, ends_at: str | None = None, answers: bool = True, server: str = "TandemMQ") -> Script:
        """Confirms what asks for it; hangs up at the command ``ends_at``, which is not answered."""

        async def script(peer: Peer) -> None:
            await peer.welcome(server)
            seen: list[Frame] = []
            self.frames.append(seen)
            while True:
                try:
                    frame = await peer.read()
                except (EOFError, ConnectionError):
                    return
                seen.append(frame)
                if frame.command == ends_at:
                    return
                if "receipt" in frame.headers and (answers or frame.command == "DISCONNECT"):
                    peer.write(frame.receipt)

        return script

    def of(self, connection: int, command: str) -> list[Frame]:
        return [frame for frame in self.frames[connection] if frame.command == command]


def numbers(frames: list[Frame]) -> list[str]:
    return [frame.headers["tandemmq-send-id"] for frame in frames]


async def until(condition: object, seconds: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():  # type: ignore[operator]
        assert asyncio.get_running_loop().time() < deadline, "not in time"
        await asyncio.sleep(0.005)


async def test_messages_without_a_receipt_are_sent_again_in_order_with_their_numbers() -> None:
    notes = Notes()

    async def half(peer: Peer) -> None:
        await peer.welcome()
        notes.frames.append(frames := [await peer.expect("SEND") for _ in range(6)])
        for frame in frames[:3]:
            peer.write(frame.receipt)

    async with ScriptedBroker(half, notes.script()) as broker, Client(broker.url(FAST)) as client:
        for number in range(6):
            await client.send("/queue/a", str(number), {"colour": "red"})
        await client.flush()
        assert client.resent == 3
    first, again = notes.of(0, "SEND"), notes.of(1, "SEND")
    assert [frame.body for frame in again] == [b"3", b"4", b"5"]
    assert numbers(again) == numbers(first)[3:]
    assert all(frame.headers["persistent"] == "true" and frame.headers["colour"] == "red" for frame in again)


async def test_another_broker_is_not_told_numbers_it_would_keep() -> None:
    notes = Notes()
    first = notes.script(ends_at="SEND", server=OTHER)
    async with ScriptedBroker(first, notes.script()) as broker, Client(broker.url(FAST)) as client:
        await client.send("/queue/a", b"x")
        await client.flush()
    assert "tandemmq-send-id" not in notes.of(0, "SEND")[0].headers
    assert "tandemmq-send-id" in notes.of(1, "SEND")[0].headers


async def test_a_number_of_the_callers_own_is_left_as_it_is() -> None:
    notes = Notes()
    async with ScriptedBroker(notes.script()) as broker, Client(broker.url(FAST)) as client:
        await client.send("/queue/a", b"x", {"tandemmq-send-id": "report:7"})
    assert numbers(notes.of(0, "SEND")) == ["report:7"]


async def test_subscriptions_come_before_messages_on_a_new_connection() -> None:
    notes = Notes()
    scripts = notes.script(ends_at="SEND"), notes.script()
    async with ScriptedBroker(*scripts) as broker, Client(broker.url(FAST), client_id="me") as client:
        await client.subscribe("/topic/a", durable_name="news", prefetch=7)
        await client.send("/queue/a", b"x")
        await client.flush()
    assert [frame.command for frame in notes.frames[1]] == ["SUBSCRIBE", "SEND", "DISCONNECT"]
    subscribe = notes.of(1, "SUBSCRIBE")[0].headers
    assert (subscribe["activemq.subscriptionName"], subscribe["activemq.prefetchSize"]) == ("news", "7")


async def test_an_ended_subscription_stays_ended_and_a_durable_one_can_be_forgotten() -> None:
    notes = Notes()
    scripts = notes.script(ends_at="SEND"), notes.script()
    async with ScriptedBroker(*scripts) as broker, Client(broker.url(FAST), client_id="me") as client:
        subscription = await client.subscribe("/topic/a", durable_name="news")
        await subscription.unsubscribe()
        await client.send("/queue/a", b"x")
        await client.flush()
        await subscription.unsubscribe(is_forgotten=True)
        with pytest.raises(Closed):
            await subscription.receive(1)
        assert [message async for message in subscription] == []
    assert [frame.command for frame in notes.frames[1]] == ["SEND", "UNSUBSCRIBE", "DISCONNECT"]
    assert "activemq.subscriptionName" not in notes.of(0, "UNSUBSCRIBE")[0].headers
    assert notes.of(1, "UNSUBSCRIBE")[0].headers["activemq.subscriptionName"] == "news"


async def test_a_durable_subscription_needs_a_client_id() -> None:
    with pytest.raises(ValueError, match="client_id"):
        await Client("stomp://a:1").subscribe("/topic/a", durable_name="news")


def delivering(notes: Notes, ends_at: str) -> Script:
    """Delivers a message to the subscription, then hangs up at that command."""

    async def script(peer: Peer) -> None:
        await peer.welcome()
        notes.frames.append(seen := [])
        while not seen or seen[-1].command != ends_at:
            seen.append(await peer.read())
            if seen[-1].command == ends_at:
                return
            if "receipt" in seen[-1].headers:
                peer.write(seen[-1].receipt)
            if seen[-1].command == "SUBSCRIBE":
                peer.write(b"MESSAGE\nsubscription:1\nmessage-id:1\nack:1-1\n\nbody\0")

    return script


async def test_a_message_of_a_lost_connection_cannot_be_acknowledged() -> None:
    notes = Notes()
    scripts = delivering(notes, "SEND"), delivering(notes, "DISCONNECT")
    async with ScriptedBroker(*scripts) as broker:
        client = Client(broker.url(FAST))
        await client.connect()
        subscription = await client.subscribe("/queue/a")
        old = await subscription.receive(5)
        assert old is not None
        await client.send("/queue/b", b"x")
        await until(lambda: client.resent == 1)
        assert not await client.acknowledge(old)
        new = await subscription.receive(5)
        assert new is not None
        assert new.connection != old.connection
        assert await client.acknowledge(new)
        assert not await client.close(), "its receipt was not given"
    assert len(notes.of(1, "ACK")) == 1


async def test_an_acknowledgement_that_waits_for_its_confirmation_hears_of_the_loss() -> None:
    notes = Notes()
    scripts = delivering(notes, "ACK"), delivering(notes, "NEVER")
    async with ScriptedBroker(*scripts) as broker, Client(broker.url(FAST)) as client:
        subscription = await client.subscribe("/queue/a")
        message = await subscription.receive(5)
        assert message is not None
        assert not await client.acknowledge(message, is_confirmed=True)
        again = await subscription.receive(5)
        assert again is not None
        assert await client.acknowledge(again, is_confirmed=True)
        assert await client.close()


async def test_a_transaction_is_begun_sent_and_committed() -> None:
    notes = Notes()
    async with ScriptedBroker(notes.script()) as broker, Client(broker.url(FAST)) as client:
        async with await client.begin() as transaction:
            await transaction.send("/queue/a", b"1")
            await transaction.send("/queue/a", b"2")
        with pytest.raises(Closed):
            await transaction.send("/queue/a", b"late")

        async def change_my_mind() -> None:
            async with await client.begin() as undone:
                await undone.send("/queue/a", b"3")
                raise RuntimeError("changed my mind")

        with pytest.raises(RuntimeError, match="changed my mind"):
            await change_my_mind()
    commands = [frame.command for frame in notes.frames[0]]
    assert commands == ["BEGIN", "SEND", "SEND", "COMMIT", "BEGIN", "SEND", "ABORT", "DISCONNECT"]
    assert len({frame.headers["transaction"] for frame in notes.frames[0][:4]}) == 1


@pytest.mark.parametrize("lost_at", ["SEND", "COMMIT"])
async def test_a_transaction_is_repeated_with_the_same_numbers_on_the_next_connection(lost_at: str) -> None:
    notes = Notes()
    scripts = notes.script(ends_at=lost_at), notes.script()
    async with (
        ScriptedBroker(*scripts) as broker,
        Client(broker.url(FAST)) as client,
        await client.begin() as transaction,
    ):
        await transaction.send("/queue/a", b"1")
        await transaction.send("/queue/a", b"2")
    assert [frame.command for frame in notes.frames[1]] == ["BEGIN", "SEND", "SEND", "COMMIT", "DISCONNECT"]
    sent = numbers(notes.of(0, "SEND"))
    assert numbers(notes.of(1, "SEND"))[: len(sent)] == sent


@pytest.mark.parametrize("servers", [(OTHER, "TandemMQ"), ("TandemMQ", OTHER)])
async def test_a_commit_without_a_receipt_at_another_broker_is_in_doubt(servers: tuple[str, str]) -> None:
    notes = Notes()
    scripts = notes.script(ends_at="COMMIT", server=servers[0]), notes.script(server=servers[1])
    async with ScriptedBroker(*scripts) as broker, Client(broker.url(FAST)) as client:
        transaction = await client.begin()
        await transaction.send("/queue/a", b"1")
        with pytest.raises(InDoubt, match="all together, or not at all"):
            await transaction.commit()
        await client.send("/queue/a", b"the client goes on")
    outside = [frame.body for frame in notes.of(1, "SEND") if "transaction" not in frame.headers]
    assert outside == [b"the client goes on"]
    assert notes.of(1, "COMMIT") == []


async def test_a_commit_is_in_doubt_when_the_audit_may_have_forgotten_its_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandemmq.client.transaction.REPEATED_NUMBERS_MAX", 3)
    notes = Notes()
    scripts = notes.script(ends_at="COMMIT"), notes.script()
    async with ScriptedBroker(*scripts) as broker, Client(broker.url(FAST)) as client:
        transaction = await client.begin()
        await transaction.send("/queue/a", b"1")
        for number in range(3):
            await client.send("/queue/b", str(number))
        with pytest.raises(InDoubt):
            await transaction.commit()


async def full(peer: Peer) -> None:
    await peer.welcome()
    peer.error("the store is full", (await peer.expect("BEGIN", "SEND")).headers["receipt"])
    await peer.expect("ABORT")
    peer.write((await peer.expect("DISCONNECT")).receipt)


async def rolling_back(peer: Peer) -> None:
    await peer.welcome()
    peer.write((await peer.expect("BEGIN", "SEND")).receipt)
    peer.error("rolled back", (await peer.expect("COMMIT")).headers["receipt"])
    peer.write((await peer.expect("DISCONNECT")).receipt)


@pytest.mark.parametrize(
    ("scripts", "error", "reason"),
    [
        pytest.param([rolling_back], BrokerError, "rolled back", id="the commit is refused: it was not done"),
        pytest.param([full], BrokerError, "the store is full", id="a message is refused: it is undone"),
        # The first commit may have been done: that the second was not does not say so.
        pytest.param([Notes().script(ends_at="COMMIT"), full], InDoubt, "the store is full", id="repetition refused"),
        pytest.param([Notes().script(ends_at="COMMIT")], InDoubt, "no broker reachable", id="nobody can be asked"),
    ],
)
async def test_a_commit_that_fails_is_undone_or_in_doubt(
    scripts: list[Script], error: type[Exception], reason: str
) -> None:
    async with ScriptedBroker(*scripts) as broker:
        client = Client(broker.url(f"{FAST}&maxReconnectAttempts=2"))
        await client.connect()
        transaction = await client.begin()
        await transaction.send("/queue/a", b"1")
        with pytest.raises(error) as caught:
            await transaction.commit()
        assert reason in str(caught.value.__cause__ if error is InDoubt else caught.value)
        await client.close()


async def test_acknowledgements_in_a_transaction_are_lost_with_the_connection() -> None:
    notes = Notes()
    scripts = delivering(notes, "SEND"), notes.script()
    async with ScriptedBroker(*scripts) as broker, Client(broker.url(FAST)) as client:
        message = await (await client.subscribe("/queue/a")).receive(5)
        assert message is not None
        transaction = await client.begin()
        assert await transaction.acknowledge(message)

        async def answer() -> None:
            await transaction.send("/queue/b", b"the answer")
            await transaction.commit()

        with pytest.raises(TransactionLost):
            await answer()
        await until(lambda: len(notes.frames) == 2)
    assert notes.of(0, "ACK")[0].headers["transaction"] == notes.of(0, "BEGIN")[0].headers["transaction"]
    assert notes.of(1, "BEGIN") == notes.of(1, "COMMIT") == []


async def test_a_commit_with_acknowledgements_and_no_receipt_is_in_doubt() -> None:
    notes = Notes()
    scripts = delivering(notes, "COMMIT"), notes.script()
    async with ScriptedBroker(*scripts) as broker, Client(broker.url(FAST)) as client:
        message = await (await client.subscribe("/queue/a")).receive(5)
        assert message is not None
        transaction = await client.begin()
        assert await transaction.acknowledge(message)
        with pytest.raises(InDoubt, match="and acknowledgements"):
            await transaction.commit()


async def test_a_commit_that_is_given_up_is_undone_at_the_broker() -> None:
    aborted = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.expect("BEGIN", "SEND", "ABORT")  # the SEND was not answered, so no COMMIT was sent
        aborted.set()
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url(FAST)) as client:
        transaction = await client.begin()
        await transaction.send("/queue/a", b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(transaction.commit(), 0.05)
        await asyncio.wait_for(aborted.wait(), 5)


async def test_a_subscription_that_is_given_up_is_ended_at_the_broker() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.expect("SUBSCRIBE", "UNSUBSCRIBE")
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url(FAST)) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.subscribe("/queue/a"), 0.05)


async def test_a_client_that_failed_goes_on_where_it_was_when_it_is_connected_again() -> None:
    notes = Notes()
    async with ScriptedBroker(confirming(1)) as broker:
        client = Client(broker.url(f"{FAST}&maxReconnectAttempts=1"))
        await client.connect()
        await client.send("/queue/a", b"1")
        await client.send("/queue/a", b"2")
        with pytest.raises(NoBroker):
            await client.flush()
        assert client.unconfirmed == 1
        broker.scripts.append(notes.script())
        await client.connect()
        await client.flush()
        assert await client.close()
    assert [frame.body for frame in notes.of(0, "SEND")] == [b"2"]
