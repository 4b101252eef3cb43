"""The broker's reports to systemd: READY=1, STATUS=, WATCHDOG=1, STOPPING=1 (sd_notify(3), protocol section).

No call blocks or raises; without $NOTIFY_SOCKET every call does nothing. The watchdog is fed only while the event loop,
the storage thread and the lock's thread show life: a process whose disk hangs, or that cannot release its lock, is not
healthy, and systemd must learn that. The module does not define a sign of life: its caller passes a callable for each.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

# sd_watchdog_enabled(3) recommends to notify at half the period; a third leaves time for one slow turn.
FEEDS_PER_PERIOD = 3
STATUS_CHARACTERS_MAX = 500


class Notifier:
    """Sends datagrams to the service manager, if there is one. Any thread."""

    __slots__ = ("_address", "_complained", "_socket")

    def __init__(self, address: str | None) -> None:
        self._socket: socket.socket | None = None
        self._complained = False
        # sd_notify(3): "@" stands for the NUL byte that begins an abstract socket's name.
        self._address = "\0" + address[1:] if address is not None and address.startswith("@") else address
        if address is not None and address[:1] in {"/", "@"}:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        elif address:
            log.warning("NOTIFY_SOCKET=%s is neither a path nor an abstract socket: systemd gets no report", address)

    def ready(self, status: str) -> None:
        """Report the start, as master or standby: a standby is a unit that came up well."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """Report the line that ``systemctl status`` shows."""
        self._send(f"STATUS={_one_line(status)}")

    def feed(self) -> None:
        """Report a sign of life, for another period of the unit's WatchdogSec."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str = "stopping") -> None:
        """Report the stop; systemd then expects only the end."""
        self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    def close(self) -> None:
        """Close the socket; later calls do nothing."""
        sender, self._socket = self._socket, None
        if sender is not None:
            sender.close()

    def _send(self, state: str) -> None:
        if self._socket is None or self._address is None:
            return
        try:
            self._socket.sendto(state.encode(), self._address)
        except OSError as error:
            # A lost report costs at worst a restart by the watchdog; it must not stop the broker's work.
            if not self._complained:
                self._complained = True
                log.warning("no report to systemd by NOTIFY_SOCKET: %s (errno %s)", error.strerror, error.errno)


class Watchdog:
    """Feeds systemd's watchdog while every sign of life is younger than the period.

    ``signs`` maps a name ("event loop", "storage thread") to a callable that returns when that part last showed life,
    in seconds of ``clock``. A part that has nothing to do must renew its sign while it waits.
    """

    __slots__ = ("_clock", "_missing", "_notifier", "_signs", "period_seconds")

    def __init__(
        self,
        notifier: Notifier,
        period_seconds: float,
        signs: Mapping[str, Callable[[], float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert period_seconds > 0, "a watchdog has a period"
        self._notifier = notifier
        self.period_seconds = period_seconds
        self._signs = signs
        self._clock = clock
        self._missing: tuple[str, ...] = ()

    def check(self) -> tuple[str, ...]:
        """Feed when all signs are young enough; otherwise return the names of the parts whose signs are too old."""
        oldest = self._clock() - self.period_seconds
        missing = tuple(name for name, seen in self._signs.items() if seen() < oldest)
        if not missing:
            self._notifier.feed()
        elif missing != self._missing:
            log.error(
                "no sign of life of the %s for %g seconds: systemd's watchdog is not fed",
                " and the ".join(missing),
                self.period_seconds,
            )
        self._missing = missing
        return missing

    async def run(self) -> None:
        """Check forever; ends when cancelled. A loop that hangs does not get here, as intended."""
        while True:
            self.check()
            await asyncio.sleep(self.period_seconds / FEEDS_PER_PERIOD)


def watchdog_period_seconds(environment: Mapping[str, str] = os.environ, pid: int | None = None) -> float | None:
    """Return the period that systemd set for this process with ``$WATCHDOG_USEC`` (sd_watchdog_enabled(3)); None for
    none."""
    meant_for = environment.get("WATCHDOG_PID")
    if meant_for is not None and meant_for != str(os.getpid() if pid is None else pid):
        return None
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() and int(microseconds) > 0 else None


def _one_line(status: str) -> str:
    """Return the status on one line: systemd would read the part after a line break as another variable."""
    return " ".join(status.split())[:STATUS_CHARACTERS_MAX]
