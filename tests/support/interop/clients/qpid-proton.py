"""Qpid Proton for Python, with its own reconnection: each message is sent until the broker has accepted it."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Backoff, Container, EventInjector


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Program(MessagingHandler):
    """Sends and receives numbers; after a reconnection it sends numbers that were not accepted again."""

    def __init__(self, urls: list[str], queue: str, injector: EventInjector) -> None:
        super().__init__(prefetch=50, auto_accept=False)
        self.urls = urls
        self.queue = queue
        self.injector = injector
        self.sender: Any = None
        self.numbers: dict[Any, int] = {}  # numbers that are not accepted yet, by delivery
        self.again: list[int] = []
        self.last = 0
        self.is_ending = False
        self.is_done = False

    def on_start(self, event: Any) -> None:
        event.container.selectable(self.injector)
        backoff = Backoff(initial=0.05, max_delay=0.2, factor=2, max_tries=None)
        connection = event.container.connect(urls=self.urls, reconnect=backoff)
        self.sender = event.container.create_sender(connection, self.queue)
        event.container.create_receiver(connection, self.queue)

    def on_sendable(self, event: Any) -> None:
        self.send()

    def send(self) -> None:
        while self.sender is not None and self.sender.credit and len(self.numbers) < 50:
            if self.again:
                number = self.again.pop(0)
            elif self.is_ending:
                break
            else:
                self.last = number = self.last + 1
                say(sent=number)
            delivery = self.sender.send(Message(id=f"n{number}", body=str(number), durable=True))
            self.numbers[delivery] = number
        if self.is_ending and not self.numbers and not self.again and not self.is_done:
            self.is_done = True
            say(done=True)

    def on_accepted(self, event: Any) -> None:
        number = self.numbers.pop(event.delivery, None)
        if number is not None:
            say(confirmed=number)
        self.send()

    def on_rejected(self, event: Any) -> None:
        say(note=f"rejected: {event.delivery.remote.condition}")

    def on_message(self, event: Any) -> None:
        say(received=int(event.message.body), id=event.message.id)
        self.accept(event.delivery)

    def on_disconnected(self, event: Any) -> None:
        self.again = sorted([*self.again, *self.numbers.values()])
        self.numbers.clear()
        say(note="disconnected")

    def on_transport_error(self, event: Any) -> None:
        say(note=f"transport: {event.transport.condition}")

    def on_input_over(self, event: Any) -> None:
        self.is_ending = True
        self.send()


def main() -> None:
    addresses, queue = sys.argv[1:3]
    injector = EventInjector()
    container = Container(Program(addresses.split(","), queue, injector))
    threading.Thread(target=container.run, daemon=True).start()
    sys.stdin.read()
    injector.trigger(ApplicationEvent("input_over"))
    threading.Event().wait()


if __name__ == "__main__":
    main()
