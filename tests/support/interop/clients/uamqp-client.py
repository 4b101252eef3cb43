"""uamqp (Azure's C stack), which always uses TLS. It does not connect again: the program does, and sends again."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

import uamqp
from uamqp.authentication import SASLAnonymous
from uamqp.errors import AMQPError
from uamqp.message import MessageHeader, MessageProperties

WINDOW = 50
PAUSE_SECONDS = 0.05
#: What it raises when its connection is lost.
LOST = (AMQPError, OSError, RuntimeError)
#: Time limit of an attempt, in milliseconds.
PATIENCE_MS = 10_000


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def clients(make: Any, addresses: str, queue: str, root: str, **options: Any) -> Iterator[Any]:
    """Open a client of the next address, again and again."""
    for address in cycle(addresses.split(",")):
        place = urlsplit(address)
        login = SASLAnonymous(place.hostname, port=place.port, verify=root)
        policy = uamqp.errors.ErrorPolicy(max_retries=0)
        client = make(f"{address}/{queue}", auth=login, error_policy=policy, **options)
        yield client
        client.close()
        time.sleep(PAUSE_SECONDS)


def message_of(number: int) -> uamqp.Message:
    header = MessageHeader()
    header.durable = True
    return uamqp.Message(str(number), properties=MessageProperties(message_id=f"n{number}"), header=header)


def receive(*where: str) -> None:
    for client in clients(uamqp.ReceiveClient, *where, prefetch=WINDOW, auto_complete=False):
        try:
            for message in client.receive_messages_iter():
                say(received=int(b"".join(message.get_data())), id=message.properties.message_id.decode())
                message.accept()
        except LOST as error:
            say(note=f"{type(error).__name__}: {error}")


def send(is_over: threading.Event, *where: str) -> None:
    number, is_confirmed = 0, True
    # By default it requests the mode second, and then does not settle what the broker has accepted.
    mode = uamqp.constants.ReceiverSettleMode.ReceiveAndDelete
    for client in clients(uamqp.SendClient, *where, msg_timeout=PATIENCE_MS, receive_settle_mode=mode):
        try:
            while not (is_over.is_set() and is_confirmed):
                if is_confirmed:
                    number, is_confirmed = number + 1, False
                    say(sent=number)
                client.send_message(message_of(number))  # returns when the broker has it
                is_confirmed = True
                say(confirmed=number)
        except LOST as error:
            say(note=f"{type(error).__name__}: {error}")
            continue
        say(done=True)
        return


def main() -> None:
    where, is_over = [*sys.argv[2:4], sys.argv[1]], threading.Event()
    threading.Thread(target=receive, args=where, daemon=True).start()
    threading.Thread(target=send, args=(is_over, *where), daemon=True).start()
    sys.stdin.read()
    is_over.set()
    threading.Event().wait()


if __name__ == "__main__":
    main()
