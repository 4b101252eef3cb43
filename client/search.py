"""Search for the master: rounds over the addresses, until one answers or the limits of the URL are reached.

A standby refuses, and then the next address is tried at once. An address that does not answer (a host that is down, a
stopped broker) only gets a head start. Its attempt continues beside the others and delays none of them (RFC 8305 does
so with the addresses of one host). Rounds are separated by the URL's pauses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator

from tandemmq.client.connection import Connection
from tandemmq.client.errors import NoBroker
from tandemmq.client.failover_url import Address, FailoverUrl

HEAD_START_SECONDS = 0.25

Attempt = Callable[[Address], Coroutine[None, None, Connection]]


class Search:
    """Search for the master; call ``run`` once. ``failed``, the address just lost, comes last in each round."""

    def __init__(
        self, url: FailoverUrl, attempt: Attempt, notice: Callable[[str], None], chance: random.Random
    ) -> None:
        self._url = url
        self._attempt = attempt
        self._notice = notice
        self._chance = chance
        self._running: dict[Address, asyncio.Task[Connection]] = {}
        self.problems: dict[Address, str] = {}

    async def run(self, failed: Address | None, pauses: Iterator[float]) -> Connection:
        """Return the first connection that is made, in as many rounds as there are pauses before them.

        NoBroker when the rounds are used up, BrokerError when a broker refuses.
        """
        try:
            for made, pause in enumerate(pauses):
                if made:
                    self._warn(made)
                if pause and (found := await self._wait(pause)) is not None:
                    return found
                if (found := await self._round(failed)) is not None:
                    return found
            if self._running and (found := await self._last_answers()) is not None:
                return found
            raise NoBroker(f"no broker reachable ({self.failures()})")
        finally:
            await self._end()

    def failures(self) -> str:
        """Return the outcome for each address so far."""
        return "; ".join(f"{address}: {problem}" for address, problem in self.problems.items())

    async def _round(self, failed: Address | None) -> Connection | None:
        for address in self._url.order(failed, self._chance):
            if address not in self._running:
                self._running[address] = asyncio.create_task(self._attempt(address))
                self.problems[address] = "no answer yet"
                found = await self._wait(HEAD_START_SECONDS, until_ended=address)
                if found is not None:
                    return found
        return None

    async def _last_answers(self) -> Connection | None:
        """Wait for the attempts that have not ended after the last round; each has its own time limit."""
        while self._running:
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            if (found := self._found()) is not None:
                return found
        return None

    async def _wait(self, seconds: float, until_ended: Address | None = None) -> Connection | None:
        """Wait while attempts continue. Return early when one succeeds, or when the named one has ended."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            if not self._running:
                await asyncio.sleep(left)
                return None
            await asyncio.wait(self._running.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if (found := self._found()) is not None:
                return found
            if until_ended is not None and until_ended not in self._running:
                return None
        return None

    def _found(self) -> Connection | None:
        """Take the attempts that have ended: return the first that succeeded, and note why the others failed."""
        found: Connection | None = None
        for address, task in [(address, task) for address, task in self._running.items() if task.done()]:
            if found is not None:
                continue  # a second success: _end drops it
            del self._running[address]
            try:
                found = task.result()
            except NoBroker as problem:
                self.problems[address] = str(problem)
        return found

    async def _end(self) -> None:
        for task in self._running.values():
            task.cancel()
        for ended in await asyncio.gather(*self._running.values(), return_exceptions=True):
            if isinstance(ended, Connection):
                ended.drop("another answered first")
        self._running.clear()

    def _warn(self, rounds: int) -> None:
        every = self._url.warn_after_reconnect_attempts
        if every > 0 and (rounds == 1 or rounds % every == 0):
            self._notice(f"no broker reachable ({self.failures()}), trying again")
