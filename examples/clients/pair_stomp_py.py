"""Send and receive over a pair of brokers with stomp.py. The program continues when the master dies.

python pair_stomp_py.py send    a:61613,b:61613 /queue/orders 1000
python pair_stomp_py.py receive a:61613,b:61613 /queue/orders 1000

stomp.py finds the master among its hosts when it connects. This program reconnects, sends messages without a receipt
again, and subscribes again.
"""

import sys
import threading
import time
import uuid
from typing import Any

import stomp

PAUSE_SECONDS = 0.05
RECEIPT_SECONDS = 10.0
# stomp.py closes its socket in another thread and sets it to None, so a call at that moment raises AttributeError.
LOST = (stomp.exception.StompException, OSError, AttributeError)


class Notes(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """Frames that arrived on the connection. stomp.py calls the methods in its own thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.receipts: set[str] = set()
        self.messages: list[Any] = []
        self.is_lost = False

    def on_receipt(self, frame: Any) -> None:
        with self.changed:
            self.receipts.add(frame.headers["receipt-id"])
            self.changed.notify_all()

    def on_message(self, frame: Any) -> None:
        with self.changed:
            self.messages.append(frame)
            self.changed.notify_all()

    def on_disconnected(self) -> None:
        with self.changed:
            self.is_lost = True
            self.changed.notify_all()


def connect(hosts: str) -> tuple[stomp.Connection12, Notes]:
    """Return a connection to the master."""
    addresses = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in hosts.split(","))]
    while True:
        connection = stomp.Connection12(addresses, heartbeats=(5000, 5000), reconnect_attempts_max=1)
        notes = Notes()
        connection.set_listener("notes", notes)
        try:
            connection.connect(wait=True)
            return connection, notes
        except LOST:
            time.sleep(PAUSE_SECONDS)


def send(hosts: str, queue: str, count: int) -> None:
    producer = f"shop-{uuid.uuid4().hex}"  # a name that is never used again
    connection, notes = connect(hosts)
    for number in range(1, count + 1):
        receipt = str(number)
        headers = {"persistent": "true", "receipt": receipt, "tandemmq-send-id": f"{producer}:{number}"}
        while receipt not in notes.receipts:
            try:
                connection.send(queue, f"order {number}", headers=headers)
                with notes.changed:
                    notes.changed.wait_for(lambda: receipt in notes.receipts or notes.is_lost, RECEIPT_SECONDS)  # noqa: B023
            except LOST:
                pass
            if receipt not in notes.receipts:
                connection, notes = connect(hosts)  # then send the same message with the same number
    connection.disconnect()


def receive(hosts: str, queue: str, count: int) -> None:
    seen: set[str] = set()
    while len(seen) < count:
        connection, notes = connect(hosts)
        try:
            connection.subscribe(queue, id="1", ack="client-individual")
            while len(seen) < count and not notes.is_lost:
                with notes.changed:
                    notes.changed.wait_for(lambda: notes.messages or notes.is_lost)  # noqa: B023
                    taken, notes.messages = notes.messages, []
                for message in taken:
                    if message.body not in seen:
                        print(message.body, flush=True)
                        seen.add(message.body)
                    connection.ack(message.headers["ack"])
            connection.disconnect()
        except LOST:
            pass  # unacknowledged messages are delivered again


if __name__ == "__main__":
    what, hosts, queue, count = sys.argv[1:]
    (send if what == "send" else receive)(hosts, queue, int(count))
