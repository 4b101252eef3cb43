"""The client with a scripted broker: pieces of frames, invalid bytes, errors, silence."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from tandemmq.client import BrokerError, Client, Closed, NoBroker
from tests.support.client.idle_time import IdleTime, IdleTimeLoop
from tests.support.client.scripted_broker import Peer, ScriptedBroker, confirming

BODY = "zwölf\0".encode() + bytes(range(256))
MESSAGE = b"MESSAGE\nsubscription:1\nmessage-id:m\\c1\nack:a-1\ncolour:a\\cb\\\\c\\nd\ncontent-length:%d\n\n%b\0\n" % (
    len(BODY),
    BODY,
)


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


async def test_frames_that_come_byte_by_byte_are_the_same_frames() -> None:
    async def script(peer: Peer) -> None:
        await peer.greeted()
        await peer.trickle(b"CONNECTED\r\nversion:1.2\r\nserver:TandemMQ\r\n\r\n\0\n\n")
        await peer.trickle((await peer.expect("SUBSCRIBE")).receipt + MESSAGE + b"\n\r\n" + MESSAGE)
        assert (await peer.expect("ACK")).headers["id"] == "a-1"
        await peer.trickle((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url()) as client:
        subscription = await client.subscribe("/queue/a")
        for _ in range(2):
            message = await subscription.receive(5)
            assert message is not None
            assert (message.body, message.headers["colour"], message.headers["message-id"]) == (
                BODY,
                "a:b\\c\nd",
                "m:1",
            )
        assert await client.acknowledge(message)
        assert await client.close()


async def test_many_frames_in_one_piece_are_all_seen() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        peer.write((await peer.expect("SUBSCRIBE")).receipt + MESSAGE * 100)
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url()) as client:
        messages = aiter(await client.subscribe("/queue/a"))
        for _ in range(100):
            assert (await anext(messages)).body == BODY


async def test_a_message_with_a_long_head_is_seen() -> None:
    head = b"".join(b"h%d:%b\n" % (number, rb"\c" * 20_000) for number in range(10))

    async def script(peer: Peer) -> None:
        await peer.welcome()
        peer.write((await peer.expect("SUBSCRIBE")).receipt + MESSAGE.replace(b"colour:", head + b"colour:"))
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url()) as client:
        message = await (await client.subscribe("/queue/a")).receive(5)
        assert message is not None
        assert (message.body, message.headers["h9"]) == (BODY, ":" * 20_000)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\nno",
        b"\xff\xfe\n\n\0",
        b"RECEIPT\nno colon\n\n\0",
        b"MESSAGE\ncontent-length:2\n\nlonger\0",
        b"CONNECTED\nversion:1.2\n\n\0",
        b"RECEIPT\nreceipt-id:a\\tb\n\n\0",
        b"X" * 20_000,
    ],
)
async def test_garbage_ends_the_connection_and_nothing_else(garbage: bytes) -> None:
    lines: list[str] = []

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.expect("SEND")
        peer.write(garbage + b"\0")
        with pytest.raises((EOFError, ConnectionError)):
            await peer.read()

    async with (
        ScriptedBroker(script, confirming()) as broker,
        Client(broker.url("initialReconnectDelay=1"), notice=lines.append) as client,
    ):
        await client.send("/queue/a", b"kept")
        await client.flush()
        assert client.resent == 1
    assert any("it sent invalid STOMP" in text for text in lines), lines


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (b"220 mail.example ESMTP\r\n\r\n\0", NoBroker, "invalid STOMP"),
        (b"CONNECTED\nversion:1.1\n\n\0", BrokerError, r"uses STOMP 1\.1"),
        (b"ERROR\nmessage:User name [me] or password is invalid.\n\n\0", BrokerError, "password is invalid"),
    ],
)
async def test_a_refused_login_gets_the_reason(answer: bytes, error: type[Exception], reason: str) -> None:
    async def script(peer: Peer) -> None:
        frame = await peer.expect("CONNECT")
        assert (frame.headers["login"], frame.headers["passcode"]) == ("me", "se:cret")
        peer.write(answer)
        await asyncio.sleep(0.05)

    async with ScriptedBroker(script) as broker:
        with pytest.raises(error, match=reason):
            await Client(broker.address, login="me", passcode="se:cret").connect()


async def refusing_one_of_three(peer: Peer) -> None:
    """The last one is answered first."""
    await peer.welcome()
    frames = [await peer.expect("SEND") for _ in range(3)]
    for frame in reversed(frames):
        if frame.body == b"bad":
            peer.error("refused", frame.headers["receipt"])
        else:
            peer.write(frame.receipt)
    peer.write((await peer.expect("DISCONNECT")).receipt)


async def test_an_error_about_one_message_is_told_and_the_others_go_on() -> None:
    async with ScriptedBroker(refusing_one_of_three) as broker, Client(broker.url()) as client:
        for body in (b"good", b"bad", b"good"):
            await client.send("/queue/a", body)
        with pytest.raises(BrokerError, match="refused"):
            await client.flush()
        await client.flush()
        assert (client.unconfirmed, client.resent) == (0, 0)


async def test_each_task_hears_of_its_own_message() -> None:
    async with ScriptedBroker(refusing_one_of_three) as broker, Client(broker.url()) as client:
        ended = await asyncio.gather(
            *(client.send_confirmed("/queue/a", body) for body in (b"good", b"bad", b"good")), return_exceptions=True
        )
    assert [type(each) for each in ended] == [type(None), BrokerError, type(None)]


async def test_an_error_without_a_request_reaches_waiting_callers_and_the_connection_stays() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        peer.write((await peer.expect("SUBSCRIBE")).receipt)
        peer.error("Unexpected ACK received")
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url()) as client:
        subscription = await client.subscribe("/queue/a")
        with pytest.raises(BrokerError, match="Unexpected ACK"):
            await subscription.receive(5)
        assert await subscription.receive(0.01) is None
    assert broker.connections == 1


async def test_a_broker_that_hangs_up_with_an_error_again_and_again_means_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.expect("SEND")
        peer.error("The maximum frame length was exceeded")

    async with ScriptedBroker(*[script] * 10) as broker:
        client = Client(broker.url())
        await client.connect()
        await client.send("/queue/a", b"too long")
        with pytest.raises(BrokerError, match="maximum frame length"):
            await client.flush()
        assert broker.connections == 3
        assert client.unconfirmed == 1
        assert not await client.close()


async def test_an_error_before_a_loss_is_forgotten_when_the_next_connection_is_well() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.expect("SEND")
        peer.error("No heart-beat for 20 seconds")

    async with ScriptedBroker(script, confirming()) as broker, Client(broker.url()) as client:
        await client.send("/queue/a", b"kept")
        await client.flush()
    assert broker.connections == 2


async def test_a_broker_that_falls_silent_is_left() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome(heart_beat="50,50")
        await peer.expect("SEND")
        await asyncio.sleep(60)

    lines: list[str] = []
    async with ScriptedBroker(script, confirming()) as broker:
        url = broker.url("nested.wireFormat.maxInactivityDuration=50")
        async with Client(url, notice=lines.append) as client:
            await client.send("/queue/a", b"kept")
            await client.flush()
    assert any("no sign of life" in text for text in lines), lines


@pytest.mark.parametrize("event_loop_policy", [IdleTime()], ids=["idle"])
async def test_both_sides_show_life_and_nobody_is_left() -> None:
    async def script(peer: Peer) -> None:
        frame = await peer.welcome(heart_beat="200,200")
        assert frame.headers["heart-beat"] == "200,200"

        async def beat() -> None:
            while True:
                peer.write(b"\n")
                await asyncio.sleep(0.05)

        beating = asyncio.create_task(beat())
        frame = await peer.expect("DISCONNECT")
        beating.cancel()
        assert peer.beats >= 2
        peer.write(frame.receipt)

    async with ScriptedBroker(script) as broker:
        url = broker.url("nested.wireFormat.maxInactivityDuration=200")
        async with Client(url):
            await asyncio.sleep(0.8)
    assert broker.connections == 1


@pytest.mark.parametrize("event_loop_policy", [IdleTime()], ids=["idle"])
async def test_a_program_that_holds_up_its_own_loop_blames_nobody() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome(heart_beat="50,50")
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker:
        url = broker.url("nested.wireFormat.maxInactivityDuration=50")
        async with Client(url) as client:
            await asyncio.sleep(0.06)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, IdleTimeLoop)
            loop.now += 0.3  # as if the program had not returned to the loop
            await asyncio.sleep(0.01)
            assert await client.close()
    assert broker.connections == 1


async def test_a_slow_reader_slows_the_producer_and_loses_nothing() -> None:
    body = b"x" * 200_000
    started = asyncio.Event()
    received: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await started.wait()
        for _ in range(40):
            frame = await peer.expect("SEND")
            received.append(frame.body)
            peer.write(frame.receipt)
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url(), window=1000) as client:

        async def produce() -> None:
            for _ in range(40):
                await client.send("/queue/a", body)

        producing = asyncio.create_task(produce())
        await asyncio.sleep(0.1)
        assert not producing.done(), "eight megabytes do not fit on the way"
        started.set()
        await producing
        await client.flush()
    assert received == [body] * 40


async def test_the_window_bounds_what_has_no_receipt() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        frames = [await peer.expect("SEND") for _ in range(5)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.read(), 0.1)
        for frame in frames:
            peer.write(frame.receipt)
        peer.write((await peer.expect("SEND")).receipt)
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url(), window=5) as client:
        for number in range(6):
            await client.send("/queue/a", str(number))


async def test_a_broker_that_does_not_confirm_the_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.client.link.CLOSE_TIMEOUT_SECONDS", 0.05)

    async def script(peer: Peer) -> None:
        await peer.welcome()
        peer.write((await peer.expect("SUBSCRIBE")).receipt + MESSAGE)
        await peer.expect("ACK", "DISCONNECT")
        await asyncio.sleep(60)

    async with ScriptedBroker(script) as broker, Client(broker.url()) as client:
        message = await (await client.subscribe("/queue/a")).receive(5)
        assert message is not None
        await client.acknowledge(message)
        assert not await client.close(), "the acknowledgement was not confirmed"
        with pytest.raises(Closed):
            await client.send("/queue/a", b"late")


@pytest.mark.parametrize("name", ["receipt", "content-length", "destination", "transaction"])
async def test_headers_of_the_client_are_not_the_callers(name: str) -> None:
    async with ScriptedBroker(confirming()) as broker, Client(broker.url()) as client:
        with pytest.raises(ValueError, match=name):
            await client.send("/queue/a", b"x", {name: "1"})
        assert client.unconfirmed == 0


async def test_a_body_that_reads_as_a_text_can_be_sent_as_bytes() -> None:
    lengths: list[str | None] = []

    async def script(peer: Peer) -> None:
        await peer.welcome()
        for _ in range(3):
            message = await peer.expect("SEND")
            lengths.append(message.headers.get("content-length"))
            peer.write(message.receipt)
        peer.write((await peer.expect("DISCONNECT")).receipt)

    async with ScriptedBroker(script) as broker, Client(broker.url()) as client:
        await client.send("/queue/a", b"both")
        await client.send("/queue/a", b"both", is_bytes=True)
        await client.send_confirmed("/queue/a", b"both", is_bytes=True)
    assert lengths == [None, "4", "4"]
