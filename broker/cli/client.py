"""``tandemmq send`` and ``tandemmq receive``: messages from and to a terminal, through failovers.

Bodies go to stdout and come from arguments, files or stdin; what happens to the connection goes to stderr.
"""

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NoReturn

import click

from broker.client import PREFETCH_DEFAULT, WINDOW_DEFAULT, Client, ClientError, NoBroker
from broker.failover import FailoverUrl, UrlError
from broker.protocols.stomp.messages import SEND_ID

DEFAULT_URL = "failover:(stomp://127.0.0.1:61613)"
EXIT_FAILED = 1
EXIT_NO_BROKER = 3
# Few are asked for: take one at a time, so that none but these is marked as delivered.
ONE_BY_ONE_MAX = 100

_url = click.option(
    "--url",
    default=DEFAULT_URL,
    show_default=True,
    metavar="URL",
    help="stomp://host:port or failover:(stomp://a:61613,stomp://b:61613)?maxReconnectAttempts=5",
)
_login = click.option("--login", help="Who we say we are.")
_passcode = click.option("--passcode", help="The password for --login.")
_quiet = click.option("--quiet", is_flag=True, help="Say nothing about connections.")


@click.command("send")
@click.argument("destination", metavar="DEST")
@click.argument("body", required=False)
@_url
@_login
@_passcode
@_quiet
@click.option("--count", type=click.IntRange(1), help="Send so many, with a number behind each body.")
@click.option("--file", "source", type=click.File("rb"), help="One message a line; - is stdin.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Any number of times.")
@click.option("--priority", type=click.IntRange(0, 9))
@click.option("--persistent/--no-persistent", default=True, show_default=True)
@click.option(
    "--window", type=click.IntRange(1), default=WINDOW_DEFAULT, show_default=True, help="Receipts waited for."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many messages a second.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def send(
    destination: str,
    body: str | None,
    url: str,
    login: str | None,
    passcode: str | None,
    quiet: bool,
    count: int | None,
    source: BinaryIO | None,
    headers: tuple[str, ...],
    priority: int | None,
    persistent: bool,
    window: int,
    rate: float | None,
    as_json: bool,
) -> None:
    """Send messages to DEST (/queue/orders, /topic/news; a bare name is a queue) and wait for their receipts.

    The messages are BODY, or the lines of --file, or without both the lines of stdin. What has to be sent again after a
    failover is stored once. So is a BODY sent by several runs with the same --header tandemmq-send-id:NAME:NUMBER.
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
    client = _client(url, login, passcode, quiet, window)
    sent = 0
    started_at = time.monotonic()
    try:
        for each in _paced(_bodies(body, count, source), rate):
            client.send(_destination(destination), each, given)
            sent += 1
        client.flush()
    except KeyboardInterrupt:
        _say(f"interrupted: {sent} sent, {client.unconfirmed} without a receipt")
    except ClientError as problem:
        _fail(problem, f" – {sent} sent, {client.unconfirmed} without a receipt")
    finally:
        client.close()
    if as_json:
        done = {"sent": sent, "unconfirmed": client.unconfirmed, "resent": client.resent}
        click.echo(json.dumps({**done, "seconds": round(time.monotonic() - started_at, 3)}))
    elif not quiet:
        _say(f"{sent - client.unconfirmed} sent and confirmed in {time.monotonic() - started_at:.2f} s")
    if client.unconfirmed:
        raise SystemExit(EXIT_FAILED)


@click.command("receive")
@click.argument("destination", metavar="DEST")
@_url
@_login
@_passcode
@_quiet
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--timeout", type=click.FloatRange(0), help="End when none came for so many seconds.")
@click.option("--ack/--no-ack", default=True, show_default=True, help="--no-ack: look, and leave them where they are.")
@click.option("--selector", help="Only messages whose headers fit.")
@click.option("--json", "as_json", is_flag=True, help="Print headers and body as one line of JSON each.")
def receive(
    destination: str,
    url: str,
    login: str | None,
    passcode: str | None,
    quiet: bool,
    count: int | None,
    timeout: float | None,
    ack: bool,
    selector: str | None,
    as_json: bool,
) -> None:
    """Print the messages of DEST, one a line, and acknowledge each after it is printed. Ends with Ctrl-C.

    A message whose acknowledgement was lost with a connection comes again.
    """
    client = _client(url, login, passcode, quiet, WINDOW_DEFAULT)
    prefetch = 1 if ack and count is not None and count <= ONE_BY_ONE_MAX else PREFETCH_DEFAULT
    if not ack and count is not None:
        prefetch = count
    received = 0
    try:
        client.subscribe(
            _destination(destination), headers={"selector": selector} if selector else None, prefetch=prefetch
        )
        while count is None or received < count:
            message = client.receive(timeout)
            if message is None:
                break
            if as_json:
                click.echo(json.dumps({"headers": dict(message.headers), "body": message.text}))
            else:
                sys.stdout.buffer.write(message.body + b"\n")
                sys.stdout.buffer.flush()
            received += 1
            if ack:
                client.acknowledge(message)
    except KeyboardInterrupt:
        pass  # the way to end it
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away, `head` for one; nothing more to say to it
    except ClientError as problem:
        _fail(problem, f" – {received} received")
    finally:
        if not client.close():
            _say("the connection was lost before the acknowledgements were confirmed: some messages may come again")
    if count is not None and received < count:
        raise SystemExit(EXIT_FAILED)


def _client(url: str, login: str | None, passcode: str | None, is_quiet: bool, window: int) -> Client:
    try:
        parsed = FailoverUrl.parse(url)
    except UrlError as problem:
        raise click.BadParameter(str(problem), param_hint="--url") from None
    # stomp.py logs each failed attempt with a traceback; the notices say it in one line.
    logging.getLogger("stomp.py").setLevel(logging.CRITICAL + 1)
    return Client(parsed, login=login, passcode=passcode, window=window, notice=(lambda _: None) if is_quiet else _say)


def _bodies(body: str | None, count: int | None, source: BinaryIO | None) -> Iterator[bytes]:
    if count is not None:
        text = body if body is not None else "message"
        yield from (f"{text} {number}".encode() for number in range(1, count + 1))
    elif body is not None:
        yield body.encode()
    else:
        lines = source if source is not None else sys.stdin.buffer
        yield from (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)


def _paced(bodies: Iterable[bytes], rate: float | None) -> Iterator[bytes]:
    started_at = time.monotonic()
    for number, body in enumerate(bodies):
        if rate is not None:
            time.sleep(max(0.0, started_at + number / rate - time.monotonic()))
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
    return name.strip(), value.strip()


def _say(text: str) -> None:
    click.echo(text, err=True)


def _fail(problem: ClientError, detail: str) -> NoReturn:
    _say(f"{problem}{detail}")
    raise SystemExit(EXIT_NO_BROKER if isinstance(problem, NoBroker) else EXIT_FAILED) from None
