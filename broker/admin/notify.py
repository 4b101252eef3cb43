"""The broker's reports to systemd: READY=1, STATUS=, WATCHDOG=1, STOPPING=1 (sd_notify(3), protocol section).

No call blocks or raises; without $NOTIFY_SOCKET a call does nothing. The watchdog is fed only while the event loop, the
storage thread and the lock's thread show signs of life. So systemd restarts a process whose disk hangs, or that cannot
release its lock. The caller passes a callable for each sign of life.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

# sd_watchdog_enabled(3) recommends half the period. A third leaves time for one slow turn of the loop.
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
        """Report the start. Call it on a master and on a standby: a standby is a unit that has started, too."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """Report the line that ``systemctl status`` shows."""
        self._send(f"STATUS={_one_line(status)}")

    def feed(self) -> None:
        """Report a sign of life, for another period of the unit's WatchdogSec."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str = "stopping") -> None:
        """Report that the process is stopping."""
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
    """Feeds systemd's watchdog while each sign of life is younger than the period.

    ``signs`` maps the name of a part ("event loop", "storage thread") to a callable that returns the time of its last
    sign of life, in seconds of ``clock``. An idle part must renew its sign while it waits.
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
        """Feed the watchdog if all signs are younger than the period; otherwise return the names of the parts whose
        signs are older."""
        oldest = self._clock() - self.period_seconds
        missing = tuple(name for name, seen in self._signs.items() if seen() < oldest)
        if not missing:
            self._notifier.feed()
        elif missing != self._missing:
            log.error(
                "no sign of life of the %s for %g seconds: the watchdog of systemd is not notified",
                " and the ".join(missing),
                self.period_seconds,
            )
        self._missing = missing
        return missing

    async def run(self) -> None:
        """Check at intervals until cancelled. While the event loop hangs, there is no check, so the watchdog is not
        fed."""
        while True:
            self.check()
            await asyncio.sleep(self.period_seconds / FEEDS_PER_PERIOD)


def watchdog_period_seconds(environment: Mapping[str, str] = os.environ, pid: int | None = None) -> float | None:
    """Return the period of the watchdog that systemd set for this process in ``$WATCHDOG_USEC``
    (sd_watchdog_enabled(3)); None: there is no watchdog."""
    meant_for = environment.get("WATCHDOG_PID")
    if meant_for is not None and meant_for != str(os.getpid() if pid is None else pid):
        return None
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() and int(microseconds) > 0 else None


def _one_line(status: str) -> str:
    """Return the status on one line: systemd would read the part after a line break as another variable."""
    return " ".join(status.split())[:STATUS_CHARACTERS_MAX]
