"""Time that a client is without receipts when the master is killed.

    client  SEND, RECEIPT, SEND, RECEIPT, ...  connection lost -> try each address, every 5 ms -> CONNECTED ->
            SEND again messages without a receipt -> RECEIPT
    driver  kill -9 of the master's process after a while

Outage = last receipt before the kill to first receipt after it. The client keeps a window of one, so that the pair of
brokers is measured, and each receipt is a moment at which the store was known to be safe.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from tandemmq.bench.driver.stomp import (
    BenchError,
    Endpoint,
    SendStream,
    connect,
    disconnect,
    error_text,
    read_frame,
    read_receipts,
)

RETRY_SECONDS = 0.005
CONNECT_TIMEOUT_SECONDS = 1.0
RECEIPT_TIMEOUT_SECONDS = 5.0
OUTAGE_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class OutageResult:
    """Seconds without a receipt, their parts, and the numbers of messages with a receipt, before and after."""

    outage_seconds: float
    until_connected_seconds: float
    confirmed_before: int
    confirmed_after: int
    attempts: int
    survivor: str
    struck_at: float  # seconds of CLOCK_BOOTTIME, as those of the events

    def figures(self) -> dict[str, object]:
        """Return all figures, for a program."""
        figures = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return {name: value for name, value in figures.items() if name != "struck_at"}


def run_outage(
    endpoints: Sequence[Endpoint],
    victim_pid: int,
    destination: str = "/queue/bench.outage",
    seconds_before: float = 2.0,
    seconds_after: float = 1.0,
    body_bytes: int = 1024,
    patience_seconds: float = OUTAGE_SECONDS_MAX,
    strike: Callable[[], object] | None = None,
) -> OutageResult:
    """Send to the first endpoint that answers, kill ``victim_pid`` with -9, continue with the first that answers then.

    ``strike`` replaces the kill, on its own thread, for example by a planned handover. Raises BenchError when no broker
    answers before the kill, or within ``patience_seconds`` after it.
    """
    assert victim_pid > 1, "kill -9 of 0 or -1 is for a whole group, and of 1 for the machine"
    stream = SendStream(destination, 0, body_bytes, is_persistent=True)
    peer, _, _ = _connect_any(endpoints, time.monotonic() + patience_seconds)
    number = 0
    started_at = last_receipt_at = time.monotonic()
    while time.monotonic() < started_at + seconds_before:
        _confirm(peer, stream, number)
        last_receipt_at = time.monotonic()
        number += 1
    if strike is None:
        os.kill(victim_pid, signal.SIGKILL)
    else:
        threading.Thread(target=strike, name="strike", daemon=True).start()
    killed_at, struck_at = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    before = number
    attempts, connected_at, first_receipt_at = 0, killed_at, 0.0
    survivor = endpoints[0]
    try:
        # The dying process may still answer once or twice: those receipts count as before.
        while time.monotonic() < killed_at + patience_seconds:
            _confirm(peer, stream, number)
            last_receipt_at = time.monotonic()
            number += 1
            before = number
        raise BenchError(f"process {victim_pid} was killed, yet the connection still works: is it the master's?")
    except (OSError, BenchError) as lost:
        if time.monotonic() >= killed_at + patience_seconds:
            raise BenchError(str(lost)) from lost
        peer.close()
    deadline = killed_at + patience_seconds
    while not first_receipt_at:
        peer, survivor, tries = _connect_any(endpoints, deadline)
        attempts += tries
        connected_at = time.monotonic()
        try:
            _confirm(peer, stream, number)
            first_receipt_at = time.monotonic()
        except (OSError, BenchError):
            peer.close()
    number += 1
    while time.monotonic() < first_receipt_at + seconds_after:
        _confirm(peer, stream, number)
        number += 1
    disconnect(peer, RECEIPT_TIMEOUT_SECONDS)
    return OutageResult(
        outage_seconds=first_receipt_at - last_receipt_at,
        until_connected_seconds=connected_at - last_receipt_at,
        confirmed_before=before,
        confirmed_after=number - before,
        attempts=attempts,
        survivor=f"{survivor.host}:{survivor.port}",
        struck_at=struck_at,
    )


def _connect_any(endpoints: Sequence[Endpoint], deadline: float) -> tuple[socket.socket, Endpoint, int]:
    attempts = 0
    while time.monotonic() < deadline:
        for endpoint in endpoints:
            attempts += 1
            try:
                peer = connect(endpoint, CONNECT_TIMEOUT_SECONDS)
                peer.settimeout(RECEIPT_TIMEOUT_SECONDS)
                return peer, endpoint, attempts
            except (OSError, BenchError):
                continue
        time.sleep(RETRY_SECONDS)
    raise BenchError("no broker answers at " + ", ".join(f"{each.host}:{each.port}" for each in endpoints))


def _confirm(peer: socket.socket, stream: SendStream, number: int) -> None:
    """Send one message and wait for its receipt."""
    peer.sendall(stream.frames(number, 1, time.monotonic_ns() // 1000))
    answer = read_frame(peer)
    if read_receipts(answer) != [number]:
        raise BenchError(f"no receipt: {error_text(answer)}")


def endpoints_of(first: Endpoint, addresses: Sequence[tuple[str, int]]) -> list[Endpoint]:
    """Return an endpoint with the same credentials at each address."""
    return [replace(first, host=host, port=port) for host, port in addresses]
