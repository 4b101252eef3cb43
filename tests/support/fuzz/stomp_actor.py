"""A STOMP client that makes actions allowed by the protocol, and records what it may rely on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.support.ci.verdicts import verdict
from tests.support.fuzz.books import DLQ, DONE, Books, Copy, Delivered, Known, Work, acknowledge, confirm, sending
from tests.support.fuzz.stomp_client import Frame, Refused, Stomp, Subscription, body_of

#: The messages in these queues are counted; no client consumes from them without acknowledging.
QUEUES = ("s.0", "s.1", "s.2")
#: Names with special characters or a special meaning.
OTHERS = (
    "/queue/auto.0", "/queue/auto.1", "/topic/t.0", "/topic/t.1", "/topic/VirtualTopic.v",
    "/queue/Consumer.A.VirtualTopic.v", "/temp-queue/x", "/temp-topic/y", "/queue/a b:c%20\u00e9", "/queue/a\\b",
    "/queue/x,/topic/t.0", "/topic/t.0,/topic/t.1", "/queue/ActiveMQ.DLQ", "/remote-temp-queue/nobody",
    "/queue/../../etc", "plain",
)  # fmt: skip
PATTERNS = ("/queue/s.*", "/queue/s.>", "/queue/s.0,/queue/s.1")
SELECTORS = (
    "color = 'red'", "JMSPriority > 3", "color IS NULL OR number > 2", "color LIKE 'r%'",
    "NOT (number BETWEEN 1 AND 3)",
)  # fmt: skip
NUMBERS = ("0", "1", "5", "100")


class StompActor:
    """``is_over``: the broker or the client closed the connection."""

    def __init__(self, client: Stomp, books: Books, client_id: str | None) -> None:
        self.client = client
        self.is_over = False
        self._books = books
        self._client_id = client_id
        self._acts: list[Callable[[random.Random], None]] = [
            self.send, self.send, self.send, self.subscribe, self.subscribe, self.acknowledge, self.acknowledge,
            self.acknowledge, self.refuse, self.begin, self.end, self.end, self.unsubscribe, self.pipeline,
            self.mistake,
        ]  # fmt: skip

    def act(self, dice: random.Random) -> None:
        chosen = dice.choice(self._acts)
        try:
            chosen(dice)
            DONE[f"stomp {chosen.__name__}"] += 1
            self._take_in()
        except Refused as error:
            DONE[f"stomp {chosen.__name__}: {str(error)[:40]}"] += 1
            self._take_in()
            self._is_still_there()

    def _is_still_there(self) -> None:
        """Check whether the connection is still open, because some mistakes end it."""
        try:
            self.client.ask("SEND", {"destination": "/queue/auto.0"})
        except (Refused, ConnectionError):
            self.close()

    # ---- sending

    def send(self, dice: random.Random) -> None:
        queues = dice.choice([(QUEUES[0],), (QUEUES[1],), (QUEUES[2],), QUEUES[:2], QUEUES])
        headers = self._headers(dice)
        is_counted = dice.random() < 0.7
        is_spare = not is_counted or headers.keys() & {"expires", "AMQ_SCHEDULED_DELAY"} or "persistent" not in headers
        body, copies = self._books.new(queues if is_counted else (), is_spare=bool(is_spare))
        names = ",".join(f"/queue/{name}" for name in queues) if is_counted else dice.choice(OTHERS)
        headers["destination"] = names
        content = body.encode() + b" " * dice.choice((0, 0, 10, 3000))
        if dice.random() < 0.5:
            headers["content-length"] = str(len(content))
        work = self._transaction(dice, headers)
        with sending(copies, work, Refused):
            self.client.ask("SEND", headers, content)

    def _headers(self, dice: random.Random) -> dict[str, str]:
        headers = {}
        if dice.random() < 0.8:
            headers["persistent"] = "true"
        choices = {
            "priority": ("0", "1", "5", "9"),
            "expires": ("0", str(int(time.time() * 1000) + dice.choice((-1000, 50, 10_000)))),
            "reply-to": ("/temp-queue/x", "/queue/auto.0", "/topic/t.0"),
            "correlation-id": ("c:1\n2",),
            "type": ("order",),
            "JMSXGroupID": ("g1", "g2"),
            "AMQ_SCHEDULED_DELAY": ("1", "60", "5000"),
            "color": ("red", "blue"),
            "number": ("1", "2.5", "x"),
            "timestamp": ("1", str(int(time.time() * 1000))),
            "transformation": ("jms-map-json",),
        }
        for name, values in choices.items():
            if dice.random() < 0.12:
                headers[name] = dice.choice(values)
        if headers.get("expires") == "0":
            del headers["expires"]
        return headers

    def pipeline(self, dice: random.Random) -> None:
        """Send many frames at once, of which only the last requests a receipt."""
        body, copies = self._books.new((QUEUES[0],), is_spare=False)
        id = self.client.name()
        if self.client.version != "1.0":
            self.client.write("SUBSCRIBE", {"id": id, "destination": "/queue/auto.1", "ack": "auto"})
        for _ in range(dice.randrange(1, 30)):
            self.client.write("SEND", {"destination": dice.choice(("/queue/auto.1", "/topic/t.0"))}, b"x")
        self.client.write("SEND", {"destination": f"/queue/{QUEUES[0]}", "persistent": "true"}, body.encode())
        if self.client.version != "1.0":
            self.client.write("UNSUBSCRIBE", {"id": id})
        self.client.ask("SEND", {"destination": "/queue/auto.1"})
        confirm(copies)  # frames are processed in order

    # ---- receiving

    def subscribe(self, dice: random.Random) -> None:
        ack = dice.choice(("client", "client-individual", "auto"))
        headers = {"id": self.client.name(), "ack": ack}
        counted = [f"/queue/{name}" for name in QUEUES]
        # Before 1.2 an ACK has only the message id, which is the same for the copies of a message in several queues.
        patterns = PATTERNS if self.client.version == "1.2" else ()
        headers["destination"] = dice.choice(OTHERS if ack == "auto" else [*counted, *patterns, *OTHERS])
        is_browser = headers["destination"] in counted and self.client.version != "1.0" and dice.random() < 0.15
        if is_browser:
            headers["browser"] = "true"
        for name, values in {
            "selector": SELECTORS,
            "activemq.prefetchSize": NUMBERS[1:],
            "activemq.exclusive": ("true",),
            "activemq.retroactive": ("true",),
            "activemq.priority": ("-1", "0", "7"),
            "activemq.noLocal": ("true",),
            "transformation": ("jms-json",),
        }.items():
            if dice.random() < 0.15:
                headers[name] = dice.choice(values)
        if headers["destination"].startswith("/topic/t") and self._client_id is not None and dice.random() < 0.6:
            headers["activemq.subscriptionName"] = dice.choice(("d0", "d1"))
        known = Subscription(headers["id"], ack, is_browser)
        self.client.subscriptions[headers["id"]] = known
        try:
            self.client.ask("SUBSCRIBE", headers)
        except Refused:
            del self.client.subscriptions[headers["id"]]
            raise

    def unsubscribe(self, dice: random.Random) -> None:
        known = self._subscription(dice)
        if known is not None:
            headers = {"id": known.id}
            if self._client_id is not None and dice.random() < 0.2:
                headers["activemq.subscriptionName"] = dice.choice(("d0", "d1"))
            try:
                self.client.ask("UNSUBSCRIBE", headers)
            finally:  # it ends even if there is no durable subscription with this name
                self._take_in()
                del self.client.subscriptions[known.id]

    def _subscription(self, dice: random.Random, *, with_messages: bool = False) -> Subscription | None:
        chosen = [each for each in self.client.subscriptions.values() if each.unacknowledged or not with_messages]
        return dice.choice(chosen) if chosen else None

    def acknowledge(self, dice: random.Random) -> None:
        known = self._subscription(dice, with_messages=True)
        if known is None:
            return
        at = dice.randrange(len(known.unacknowledged))
        delivered = known.unacknowledged[at]
        covered = known.unacknowledged[: at + 1] if known.ack == "client" else [delivered]
        headers = self._of(known, delivered)
        work = self._transaction(dice, headers)
        copies = [each.copy for each in covered if not known.is_browser]
        if work is None:
            acknowledge(copies, Known.PERHAPS)
        try:
            self.client.ask("ACK", headers)
        except Refused as error:
            raise AssertionError(f"the acknowledgement of a delivery was refused: {error}") from error
        _take_off(known, covered)
        if work is None:
            acknowledge(copies, Known.YES)
        elif not known.is_browser:
            work.acknowledged.append((known.unacknowledged, covered))

    def refuse(self, dice: random.Random) -> None:
        known = self._subscription(dice, with_messages=True)
        if known is None or known.is_browser or self.client.version == "1.0":
            return
        at = dice.randrange(len(known.unacknowledged))
        refused = known.unacknowledged[at]
        covered = known.unacknowledged[: at + 1] if known.ack == "client" else [refused]
        for each in covered:
            if each.copy is not None:
                each.copy.was_moved = True
                if each.copy.queue.startswith(DLQ):
                    each.copy.is_spare = True
        self.client.ask("NACK", self._of(known, refused))
        _take_off(known, covered)

    def _of(self, known: Subscription, delivered: Delivered) -> dict[str, str]:
        if self.client.version == "1.2":
            return {"id": delivered.frame.headers["ack"]}
        return {"message-id": delivered.frame.headers["message-id"], "subscription": known.id}

    @verdict
    def _take_in(self) -> None:
        """Process the messages that were delivered in the meantime."""
        frames, self.client.delivered = self.client.delivered, []
        for frame in frames:
            known = self.client.subscriptions.get(frame.headers.get("subscription", ""))
            copy = self._copy(frame)
            if known is None or known.ack == "auto" or frame.headers.get("browser") == "end":
                continue
            assert known.is_browser or copy is None or copy.is_spare or copy.gone is not Known.YES, f"{copy} is back"
            known.unacknowledged.append(Delivered(frame, copy))

    @verdict
    def _copy(self, frame: Frame) -> Copy | None:
        name = frame.headers["destination"].removeprefix("/queue/")
        copy = self._books.of(body_of(frame.body), name)
        assert copy is None or copy.sent is not Known.NO, f"{copy} was never committed"
        return copy

    # ---- transactions

    def begin(self, dice: random.Random) -> None:
        if len(self.client.transactions) < 3:
            name = self.client.name()
            self.client.ask("BEGIN", {"transaction": name})
            self.client.transactions[name] = Work()

    def end(self, dice: random.Random) -> None:
        if not self.client.transactions:
            return
        name = dice.choice(list(self.client.transactions))
        work = self.client.transactions.pop(name)
        if dice.random() < 0.6:
            work.end(Known.PERHAPS)
            self.client.ask("COMMIT", {"transaction": name})
            work.end(Known.YES)
        else:
            work.end(Known.NO)
            self.client.ask("ABORT", {"transaction": name})

    def _transaction(self, dice: random.Random, headers: dict[str, str]) -> Work | None:
        if not self.client.transactions or dice.random() < 0.5:
            return None
        headers["transaction"] = dice.choice(list(self.client.transactions))
        return self.client.transactions[headers["transaction"]]

    # ---- frames that are refused

    def mistake(self, dice: random.Random) -> None:
        command, headers = dice.choice([
            ("ACK", {"id": "nothing", "message-id": "nothing", "subscription": "none"}),
            ("NACK", {"id": "nothing", "message-id": "nothing", "subscription": "none"}),
            ("UNSUBSCRIBE", {"id": "none"}),
            ("SUBSCRIBE", {"id": "bad", "destination": "/queue/auto.0", "selector": "nonsense ("}),
            ("SUBSCRIBE", {"id": "bad", "destination": "/queue/ActiveMQ.Advisory.>", "ack": "auto"}),
            ("SUBSCRIBE", {"id": "bad", "destination": "/topic/ActiveMQ.Advisory.>", "ack": "auto"}),
            ("SEND", {"destination": "/topic/ActiveMQ.Advisory.Connection"}),
            ("SEND", {"destination": "/topic/ActiveMQ.Scheduler.Management", "AMQ_SCHEDULER_ACTION": "BROWSE"}),
            ("SEND", {"destination": "/queue/auto.>"}),
            ("SEND", {"destination": "/queue/auto.0", "transaction": "none"}),
            ("COMMIT", {"transaction": "none"}),
            ("ABORT", {"transaction": "none"}),
            ("SEND", {"destination": "/queue/auto.0", "AMQ_SCHEDULED_CRON": "0 0 30 2 *"}),
        ])  # fmt: skip
        self.client.ask(command, headers)

    # ---- the end

    def leave(self, how: str) -> None:
        if how == "goodbye":
            try:
                self.client.ask("DISCONNECT", {})
            except Refused:
                pass
        elif how == "half":
            self.client.half_close()
            time.sleep(0.05)
        self.is_over = True
        self.client.close(with_reset=how == "reset")

    def close(self) -> None:
        self.is_over = True
        self.client.close()


def _take_off(known: Subscription, covered: list[Delivered]) -> None:
    """Remove deliveries in place: a transaction that is rolled back restores them."""
    known.unacknowledged[:] = [each for each in known.unacknowledged if each not in covered]
