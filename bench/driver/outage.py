"""Outage: the time without receipts of a client whose master is killed.

    client  SEND, RECEIPT, SEND, RECEIPT, ...  connection lost -> try each address, every 5 ms -> CONNECTED ->
            SEND again messages without a receipt -> RECEIPT
    driver  kill -9 of the master's process after a while

The outage lasts from the last receipt before the kill to the first receipt after it. The client waits for each receipt
before the next SEND, so that the time depends on the brokers, not on a window.
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
    """Result of an outage: the seconds without a receipt, their parts, and the numbers of confirmed messages before and
    after."""

    outage_seconds: float
    until_connected_seconds: float
    confirmed_before: int
    confirmed_after: int
    attempts: int
    survivor: str
    struck_at: float  # by CLOCK_BOOTTIME, like the times of events

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
    """Send to the first endpoint that answers, kill ``victim_pid`` with -9, and continue with the first endpoint that
    answers then.

    ``strike``: called on its own thread instead of the kill, for example for a planned handover. Raises BenchError if
    no broker answers before the kill, or within ``patience_seconds`` after it.
    """
    assert victim_pid > 1, "a pid of 0 or -1 would kill a process group, and 1 is init"
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
        # The dying process may still answer once or twice. These receipts count as before the kill.
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
    """Send one message, and wait for its receipt."""
    peer.sendall(stream.frames(number, 1, time.monotonic_ns() // 1000))
    answer = read_frame(peer)
    if read_receipts(answer) != [number]:
        raise BenchError(f"no receipt: {error_text(answer)}")


def endpoints_of(first: Endpoint, addresses: Sequence[tuple[str, int]]) -> list[Endpoint]:
    """Return an endpoint with the credentials of ``first`` for each address."""
    return [replace(first, host=host, port=port) for host, port in addresses]
