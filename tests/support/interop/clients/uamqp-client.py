"""uamqp (Azure's C stack), which always uses TLS. It does not reconnect, and can crash after a lost connection, so each
connection has its own process, which ends with it. Messages without an outcome are sent again.

    uamqp-client.py ROOT ADDRESSES QUEUE                   starts processes one after another, for each direction
    uamqp-client.py receive|send ROOT ADDRESS QUEUE N      one connection; N: the first number to send
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

WINDOW = 50
PAUSE_SECONDS = 0.05
#: Time limit of a send.
SEND_MS_MAX = 10_000


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


# ---- one connection


def client_of(make: Any, root: str, address: str, queue: str, **options: Any) -> Any:
    from uamqp.authentication import SASLAnonymous
    from uamqp.errors import ErrorPolicy

    place = urlsplit(address)
    login = SASLAnonymous(place.hostname, port=place.port, verify=root)
    return make(f"{address}/{queue}", auth=login, error_policy=ErrorPolicy(max_retries=0), **options)


def receive(*where: str) -> None:
    import uamqp

    client = client_of(uamqp.ReceiveClient, *where, prefetch=WINDOW, auto_complete=False)
    for message in client.receive_messages_iter():
        say(received=int(b"".join(message.get_data())), id=message.properties.message_id.decode())
        message.accept()


def send(*where: str, number: int) -> None:
    import uamqp
    from uamqp.message import MessageHeader, MessageProperties

    # By default, uamqp requests the mode second, but does not settle messages that the broker has accepted.
    mode = uamqp.constants.ReceiverSettleMode.ReceiveAndDelete
    client = client_of(uamqp.SendClient, *where, msg_timeout=SEND_MS_MAX, receive_settle_mode=mode)
    while True:
        header = MessageHeader()
        header.durable = True
        properties = MessageProperties(message_id=f"n{number}")
        say(sent=number)
        client.send_message(uamqp.Message(str(number), properties=properties, header=header))  # until it is accepted
        say(confirmed=number)
        number += 1


def connect(direction: str, root: str, address: str, queue: str, number: str) -> None:
    """Send or receive until the connection is lost, or the standard input ends."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    try:
        if direction == "receive":
            receive(root, address, queue)
        else:
            send(root, address, queue, number=int(number))
    except Exception as error:
        say(note=f"{type(error).__name__}: {error}")
    os._exit(1)


# ---- all connections


def repeat(direction: str, root: str, addresses: str, queue: str, is_over: threading.Event) -> None:
    """Start a process for one address after another, and forward its output. The sender ends when the input has ended
    and its last message is confirmed."""
    last = confirmed = 0
    for address in cycle(addresses.split(",")):
        number = str(last if last > confirmed else last + 1)
        command = [sys.executable, __file__, direction, root, address, queue, number]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                found = json.loads(line)
                if found.get("sent") == last:
                    continue  # this message is sent again
                last, confirmed = found.get("sent", last), found.get("confirmed", confirmed)
                say(**found)
                if direction == "send" and is_over.is_set() and "confirmed" in found:
                    child.kill()
                    say(done=True)
                    return
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    if sys.argv[1] in ("receive", "send"):
        connect(*sys.argv[1:])
    is_over = threading.Event()
    for direction in ("receive", "send"):
        threading.Thread(target=repeat, args=(direction, *sys.argv[1:4], is_over), daemon=True).start()
    sys.stdin.read()
    is_over.set()
    threading.Event().wait()


if __name__ == "__main__":
    main()
