"""``tandemmq send`` and ``tandemmq receive``: messages from and to a terminal, through failovers.

Bodies go to stdout and come from arguments, files or stdin. Messages about the connection go to stderr.
"""

import asyncio
import functools
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

import click
import uvloop

from tandemmq.broker.protocols.stomp.messages import SEND_ID
from tandemmq.cli.connect import connect_options, credentials, tls
from tandemmq.cli.failures import Failed, Unreachable
from tandemmq.cli.output import json_option
from tandemmq.client import PREFETCH_DEFAULT, WINDOW_DEFAULT, Client, ClientError, NoBroker, Received
from tandemmq.client.failover_url import FailoverUrl, UrlError
from tandemmq.client.frames import RESERVED

DEFAULT_URL = "failover:(stomp://127.0.0.1:61613)"
# Up to this --count the prefetch is 1, so that no other message is marked as delivered.
ONE_BY_ONE_MAX = 100
# Lines are read in pieces of this size, at most one ahead: the rest stays in the pipe, and its writer waits.
READ_BYTES = 1 << 16

Result = TypeVar("Result")

_CONNECTION = (
    click.option(
        "--url",
        default=DEFAULT_URL,
        metavar="URL",
        help="stomp://host:port, stomp+ssl://host:port, or failover:(stomp://a:61613,stomp://b:61613)"
        "?maxReconnectAttempts=5",
    ),
    connect_options,
    click.option("--quiet", is_flag=True, help="Do not report connections."),
)


def _with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the connection options. The command is called with the client that they make."""

    @functools.wraps(command)
    def with_client(url: str, window: int = WINDOW_DEFAULT, **rest: Any) -> None:
        try:
            parsed = FailoverUrl.parse(url)
        except UrlError as problem:
            raise click.BadParameter(str(problem), param_hint="--url") from None
        notice: Callable[[str], None] = (lambda _: None) if rest["quiet"] else _say
        login, passcode = credentials()
        context = tls()  # also without a TLS address, to report wrong files
        command(Client(parsed, login=login, passcode=passcode, tls=context, window=window, notice=notice), **rest)

    for option in reversed(_CONNECTION):
        with_client = option(with_client)
    return with_client


@click.command("send")
@click.argument("destination", metavar="DEST")
@click.argument("body", required=False)
@_with_client
@click.option("--count", type=click.IntRange(1), help="Number of messages; a number is added to each body.")
@click.option("--file", "source", type=click.File("rb"), help="File with one message in each line; - is stdin.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Header of the messages; repeatable.")
@click.option("--priority", type=click.IntRange(0, 9))
@click.option("--persistent/--no-persistent", default=True)
@click.option(
    "--window", type=click.IntRange(1), default=WINDOW_DEFAULT, help="Maximum number of outstanding receipts."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of messages in a second.")
@json_option
def send(
    client: Client,
    destination: str,
    body: str | None,
    quiet: bool,
    count: int | None,
    source: BinaryIO | None,
    headers: tuple[str, ...],
    priority: int | None,
    persistent: bool,
    rate: float | None,
    as_json: bool,
) -> None:
    """Send messages to DEST (/queue/orders, /topic/news; a bare name is a queue) and wait for their receipts.

    The messages are BODY, the lines of --file, or the lines of stdin. Messages repeated after a failover are stored
    once. So is a BODY sent by several runs with the same --header tandemmq-send-id:NAME:NUMBER.
    """
    if body is not None and source is not None:
        raise click.UsageError("give BODY or --file, not both")
    if count is not None and source is not None:
        raise click.UsageError("--count goes with BODY, not with --file")
    given = dict(map(_header, headers))
    if SEND_ID in given and (body is None or count is not None):
        raise click.UsageError(f"--header {SEND_ID} is the number of one message: give BODY, without --count")
    if not persistent:
        given["persistent"] = "false"
    if priority is not None:
        given["priority"] = str(priority)
    started_at = time.monotonic()
    done = _run(_send_all(client, _destination(destination), given, _paced(_bodies(body, count, source), rate)))
    figures = {name: getattr(client, name) for name in ("confirmed", "refused", "unconfirmed", "resent")}
    figures["sent"] = figures.pop("confirmed")  # only confirmed messages count as sent
    figures["seconds"] = round(time.monotonic() - started_at, 3)
    counts = f"{client.confirmed} sent and confirmed"
    counts += f", {client.refused} refused" if client.refused else ""
    counts += f", {client.unconfirmed} without a receipt" if client.unconfirmed else ""
    if done.problem is not None:
        raise _failure(done.problem, counts, figures)
    if done.is_interrupted:
        raise Failed(f"interrupted – {counts}", **figures)
    if client.unconfirmed:
        raise Failed(counts, **figures)
    if as_json:
        click.echo(json.dumps(figures))
    elif not quiet:
        _say(f"{counts} in {figures['seconds']:.2f} s")


@click.command("receive")
@click.argument("destination", metavar="DEST")
@_with_client
@click.option("--count", type=click.IntRange(1), help="End after this number of messages.")
@click.option("--timeout", type=click.FloatRange(0), help="End after this number of seconds without a message.")
@click.option("--ack/--no-ack", default=True, help="--no-ack: do not acknowledge; the messages stay.")
@click.option("--selector", help="Only messages that match this JMS selector.")
@json_option
def receive(client: Client, destination: str, quiet: bool, count: int | None, as_json: bool, **how: Any) -> None:
    """Print the messages of DEST, one in each line, and acknowledge each after it is printed, until Ctrl-C.

    A message whose acknowledgement was lost with a connection is delivered again.
    """
    show = _print_json if as_json else _print_body
    done = _run(_receive_all(client, _destination(destination), count=count, show=show, **how))
    if not done.is_confirmed:
        _say("the connection was lost before the acknowledgements were confirmed: some messages may be redelivered")
    if done.problem is not None:
        raise _failure(done.problem, f"{done.count} received", {"received": done.count})
    if count is not None and done.count < count:
        raise Failed(f"{done.count} of {count} received", received=done.count)


@dataclass(slots=True)
class _Done:
    """Outcome of a `send` or a `receive`: ``count`` is the number of messages sent or printed."""

    count: int = 0
    is_interrupted: bool = False
    is_confirmed: bool = False
    problem: ClientError | None = None


async def _send_all(client: Client, destination: str, headers: dict[str, str], bodies: AsyncIterator[bytes]) -> _Done:
    done = _Done()
    try:
        await client.connect()
        async for each in bodies:
            await client.send(destination, each, headers)
        await client.flush()
    except asyncio.CancelledError:  # Ctrl-C
        done.is_interrupted = True
        _uncancel()
    except ClientError as problem:
        done.problem = problem
    await client.close()
    return done


async def _receive_all(
    client: Client,
    destination: str,
    *,
    selector: str | None,
    count: int | None,
    timeout: float | None,
    ack: bool,
    show: Callable[[Received], None],
) -> _Done:
    done = _Done()
    prefetch = 1 if ack and count is not None and count <= ONE_BY_ONE_MAX else PREFETCH_DEFAULT
    if not ack and count is not None:
        prefetch = count
    try:
        await client.connect()
        headers = {"selector": selector} if selector else {}
        subscription = await client.subscribe(destination, headers=headers, prefetch=prefetch)
        while count is None or done.count < count:
            message = await subscription.receive(timeout)
            if message is None:
                break
            show(message)
            done.count += 1
            if ack:
                await client.acknowledge(message)
    except asyncio.CancelledError:  # Ctrl-C is the normal end
        _uncancel()
    except BrokenPipeError:
        pass  # the reader of our output, such as `head`, has ended: a normal end, as Ctrl-C
    except ClientError as problem:
        done.problem = problem
    done.is_confirmed = await client.close()
    return done


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run on a new loop. Ctrl-C cancels the work, a second one ends it at once."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _uncancel() -> None:
    """Accept the cancellation: later awaits of this task are not cancelled."""
    task = asyncio.current_task()
    assert task is not None, "commands run as a task"
    task.uncancel()


def _print_json(message: Received) -> None:
    click.echo(json.dumps({"headers": dict(message.headers), "body": message.text}))


def _print_body(message: Received) -> None:
    sys.stdout.buffer.write(message.body + b"\n")
    sys.stdout.buffer.flush()


async def _bodies(body: str | None, count: int | None, source: BinaryIO | None) -> AsyncIterator[bytes]:
    if count is not None:
        text = body if body is not None else "message"
        for number in range(1, count + 1):
            yield f"{text} {number}".encode()
    elif body is not None:
        yield body.encode()
    else:
        async for line in _lines(source if source is not None else sys.stdin.buffer):
            yield line.removesuffix(b"\r")


async def _lines(source: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the lines of a file, pipe or terminal as they come, without blocking the loop."""
    rest = b""
    async for piece in _pieces(source.fileno()):
        lines = (rest + piece).split(b"\n") if b"\n" in piece else [rest + piece]
        rest = lines.pop()
        for line in lines:
            yield line
    if rest:
        yield rest


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the input piece by piece, and read at most one piece ahead.

    A daemon thread reads. Nothing waits for its end, because a read from a silent terminal cannot be interrupted. It
    reads the descriptor, not a buffered reader: a thread that holds the lock of such a reader at exit would abort the
    interpreter.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    wanted = threading.Semaphore(2)

    def read() -> None:
        piece: bytes | OSError = b"-"
        while piece and isinstance(piece, bytes):
            wanted.acquire()
            try:
                piece = os.read(descriptor, READ_BYTES)
            except OSError as problem:
                piece = problem
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:
                return  # the loop is closed, and nothing reads any more

    threading.Thread(target=read, name="tandemmq-send-input", daemon=True).start()
    while piece := await pieces.get():
        if isinstance(piece, OSError):
            raise click.ClickException(f"the input cannot be read: {piece.strerror}")
        yield piece
        wanted.release()


async def _paced(bodies: AsyncIterator[bytes], rate: float | None) -> AsyncIterator[bytes]:
    started_at = time.monotonic()
    number = 0
    async for body in bodies:
        if rate is not None and (ahead := started_at + number / rate - time.monotonic()) > 0:
            await asyncio.sleep(ahead)
        number += 1
        yield body


def _destination(name: str) -> str:
    for scheme in ("queue", "topic"):  # as ActiveMQ's tools write it
        if name.startswith(f"{scheme}://"):
            return f"/{scheme}/{name.removeprefix(f'{scheme}://')}"
    return name if name.startswith("/") else f"/queue/{name}"


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{text!r}: expected NAME:VALUE", param_hint="--header")
    if name.strip() in RESERVED:
        raise click.BadParameter(f"{text!r}: send writes {name.strip()} itself", param_hint="--header")
    return name.strip(), value.strip()


def _say(text: str) -> None:
    click.echo(text, err=True)


def _failure(problem: ClientError, counts: str, figures: dict[str, Any]) -> Failed:
    kind = Unreachable if isinstance(problem, NoBroker) else Failed
    return kind(f"{problem} – {counts}", **figures)
