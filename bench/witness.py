"""A client that acknowledges while a master is replaced, and a check of the queues afterwards for broken promises.

lost     a message whose SEND had a receipt, and that no client acknowledged, is missing
undone   a message whose ACK had a receipt is there again
twice    a message is there twice: its receipt was lost, and its sender sent it again without an id
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tandemmq.bench.driver import stomp
from tandemmq.bench.driver.outage import OutageResult, run_outage
from tandemmq.bench.driver.stomp import BenchError, Endpoint, connect, disconnect
from tandemmq.bench.peers.server import Server

BODY_BYTES = 1024
FILL_CHUNK = 200
PATIENCE_SECONDS = 30.0
# A queue that delivers nothing for this long is empty.
QUIET_SECONDS = 0.5
HANDOVER_SECONDS_MAX = 60.0


class Stream:
    """Whole frames of a connection, as they come."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self._rest = b""
        self._frames: Iterator[bytes] = iter(())

    def next(self, patience_seconds: float) -> bytes | None:
        """Return the next frame without its NUL; None if none comes in time. BenchError: a closed connection."""
        while True:
            frame = next(self._frames, None)
            if frame is not None:
                frame = frame.lstrip(b"\r\n")
                if frame.startswith(b"ERROR"):
                    raise BenchError(f"the broker says {frame[:200]!r}")
                if frame:
                    return frame
                continue
            self.peer.settimeout(patience_seconds)
            try:
                part = self.peer.recv(1 << 16)
            except TimeoutError:
                return None
            if not part:
                raise BenchError("the broker closed the connection")
            *whole, self._rest = (self._rest + part).split(b"\0")
            self._frames = iter(whole)


def fill(endpoint: Endpoint, destination: str, count: int) -> None:
    """Send ``count`` persistent messages, each with a receipt."""
    peer = connect(endpoint)
    stream, frames = Stream(peer), stomp.SendStream(destination, 0, BODY_BYTES, is_persistent=True)
    for first in range(0, count, FILL_CHUNK):
        chunk = min(FILL_CHUNK, count - first)
        peer.sendall(frames.frames(first, chunk, 0))
        for _ in range(chunk):
            if stream.next(PATIENCE_SECONDS) is None:
                raise BenchError(f"{destination} cannot be filled: no receipt in {PATIENCE_SECONDS:g} s")
    disconnect(peer, PATIENCE_SECONDS)


class Acknowledger:
    """Consumer that takes messages one by one, each acknowledged with a receipt, until the connection is lost.

    ``confirmed`` are the numbers whose acknowledgement has a receipt; ``asked`` those that may have been taken.
    """

    def __init__(self, endpoint: Endpoint, destination: str) -> None:
        self.confirmed: set[int] = set()
        self.asked: set[int] = set()
        self._stream = Stream(_subscribe(endpoint, destination, prefetch=20))
        self._words = stomp.Acknowledgement(endpoint.version, "0")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="acknowledger", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        waiting: list[bytes] = []
        try:
            while not self._is_over.is_set():
                frame = self._stream.next(QUIET_SECONDS)
                if frame is None:
                    continue
                if frame.startswith(b"MESSAGE"):
                    waiting.append(frame)
                else:
                    self.confirmed.update(stomp.read_receipts(frame))
                if waiting and self.asked == self.confirmed:
                    self._acknowledge(waiting.pop(0))
        except (OSError, BenchError):
            pass  # the master is gone
        finally:
            self._stream.peer.close()

    def _acknowledge(self, message: bytes) -> None:
        number = stomp.producer_and_sequence(message)[1]
        self.asked.add(number)
        words = self._words.frames(stomp.message_identities([message], self._words.header))
        self._stream.peer.sendall(words.replace(b"\n\n", b"\nreceipt:%d\n\n" % number, 1))

    def end(self) -> None:
        """Stop acknowledging. Returns when no more messages are acknowledged."""
        self._is_over.set()
        self._thread.join(PATIENCE_SECONDS)


def drain(endpoint: Endpoint, destination: str) -> Counter[int]:
    """Take all messages from a queue. Return how often each number came."""
    peer = _subscribe(endpoint, destination, prefetch=1000)
    stream, words = Stream(peer), stomp.Acknowledgement(endpoint.version, "0")
    found: Counter[int] = Counter()
    while (frame := stream.next(QUIET_SECONDS)) is not None:
        found[stomp.producer_and_sequence(frame)[1]] += 1
        peer.sendall(words.frames(stomp.message_identities([frame], words.header)))
    disconnect(peer, PATIENCE_SECONDS)
    return found


@dataclass(frozen=True, slots=True)
class Toll:
    """Messages lost, acknowledgements undone, and messages stored twice."""

    lost: int = 0
    undone: int = 0
    twice: int = 0

    def __add__(self, other: Toll) -> Toll:
        return Toll(self.lost + other.lost, self.undone + other.undone, self.twice + other.twice)


def strike_and_count(
    endpoints: Sequence[Endpoint],
    master_pid: int,
    destination: str,
    messages: int,
    seconds_before: float,
    strike: Callable[[], object] | None,
    survivor: Callable[[], Endpoint],
) -> tuple[OutageResult, Toll]:
    """End the master, at the first endpoint, while a client sends and another one acknowledges ``messages``. Return the
    outage, and the toll at the endpoint that ``survivor`` returns after it. ``strike``: see run_outage."""
    acknowledged = f"{destination}.acknowledged"
    fill(endpoints[0], acknowledged, messages)
    acknowledger = Acknowledger(endpoints[0], acknowledged)
    outage = run_outage(
        endpoints,
        master_pid,
        destination,
        seconds_before=seconds_before,
        seconds_after=0.2,
        body_bytes=BODY_BYTES,
        strike=strike,
    )
    acknowledger.end()
    endpoint = survivor()
    sent, left = drain(endpoint, destination), drain(endpoint, acknowledged)
    confirmed = range(outage.confirmed_before + outage.confirmed_after)
    return outage, Toll(
        lost=sum(number not in sent for number in confirmed)
        + sum(number not in left and number not in acknowledger.asked for number in range(messages)),
        undone=sum(number in left for number in acknowledger.confirmed),
        twice=sum(count > 1 for count in (*sent.values(), *left.values())),
    )


def hand_over(master: Server) -> None:
    """Request a planned handover. CalledProcessError if it is refused."""
    assert master.admin_url is not None, "ours has one"
    command = [sys.executable, "-m", "tandemmq", "handover", "--admin", master.admin_url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=HANDOVER_SECONDS_MAX)


def _subscribe(endpoint: Endpoint, destination: str, prefetch: int) -> socket.socket:
    peer = connect(endpoint)
    headers = [
        ("id", "0"),
        ("destination", destination),
        ("ack", "client-individual"),
        ("activemq.prefetchSize", str(prefetch)),
    ]
    peer.sendall(stomp.command_frame("SUBSCRIBE", headers))
    return peer
