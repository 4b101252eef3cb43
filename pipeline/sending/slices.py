"""A sending task, in Spark or in this process: it sends its slices one after the other, with one client that reconnects
after failovers.

A slice is sent in chunks, with at most WINDOW_MESSAGES unconfirmed messages. When all messages of a chunk have
receipts, the ledger stores the progress; then the next chunk begins. So after a crash at most one chunk is sent again,
with the same ids. The broker recognizes these, because a chunk is shorter than the broker's window of ids
(``failover_producers_audit_depth``, 2048 by default).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tandemmq.client import BrokerError, Client
from tandemmq.client.tls import first_line
from tandemmq.pipeline.parts import groups
from tandemmq.pipeline.sending.ledger import Ledger, LedgerError, Round, Run, Slice
from tandemmq.pipeline.sending.sends import Sending, Unsendable, sending_of

# A sender that is late, because sleeps are not exact, may catch up at most this much.
BEHIND_SECONDS_MAX: Final = 0.1


class Pace:
    """Limit of ``per_second`` messages per second; None: no limit.

    In a period of S seconds, at most ``per_second`` * (S + BEHIND_SECONDS_MAX) + 2 messages are sent.
    """

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds_each = 0.0 if per_second is None else 1 / per_second
        self._clock = clock
        self._next = clock()

    def take(self) -> float:
        """Return how many seconds the next message must wait. It is then counted as sent."""
        now = self._clock()
        at = max(self._next, now - BEHIND_SECONDS_MAX)
        self._next = at + self._seconds_each
        return max(at - now, 0.0)


WINDOW_MESSAGES: Final = 100
CHUNK_MESSAGES_MAX: Final = 500
CHUNK_BYTES_MAX: Final = 8 << 20
# Interval at which a slow replay stores its progress.
CHUNK_SECONDS: Final = 5.0
# If more messages of a slice are refused, the task fails: the cause is probably not the messages.
REFUSED_MAX: Final = 100
# Number of rows that are read from the plan at once.
ROWS_READ: Final = 32

Row = dict[str, Any]


class TooManyRefused(Exception):
    """The broker has refused more than REFUSED_MAX messages."""


def send_task(directory: str, task: int) -> int:
    """Send the slices of ``task`` in the round in ``directory``. Return how many messages were confirmed.

    Raises the errors of ``client`` if no broker answers, InUse, TooManyRefused, OSError.
    """
    return asyncio.run(_send_task(directory, task))


def send_tasks(directory: str, tasks: int) -> int:
    """Run all ``tasks`` of the round concurrently in this process. The first failure ends the other tasks. Raises like
    ``send_task``."""

    async def send_all() -> int:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(_send_task(directory, task)) for task in range(tasks)]
        return sum(task.result() for task in running)

    try:
        return asyncio.run(send_all())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _send_task(directory: str, task: int) -> int:
    ledger = Ledger(directory)
    round, run = ledger.round(), ledger.run()
    if run is None:
        raise LedgerError(f"{directory} has no run.json")
    slices = {slice.number: slice for slice in run.slices}
    return await _send([slices[number] for number in round.tasks[task]], ledger, run, round)


async def _send(slices: Iterable[Slice], ledger: Ledger, run: Run, round: Round) -> int:
    sender = _Sender(ledger, run, round)
    try:
        return sum([await sender.send(slice) for slice in slices])
    finally:
        await sender.close()


class _Sender:
    """Sender of one task, with its connection."""

    def __init__(self, ledger: Ledger, run: Run, round: Round) -> None:
        self._ledger = ledger
        self._run = run
        self._round = round
        self._pace = Pace(round.per_second_each)
        self._chunk_messages = CHUNK_MESSAGES_MAX
        if round.per_second_each is not None:
            self._chunk_messages = min(max(int(round.per_second_each * CHUNK_SECONDS), 1), CHUNK_MESSAGES_MAX)
        self._client: Client | None = None

    async def send(self, slice: Slice) -> int:
        """Send the rest of the slice. Return how many messages were confirmed."""
        confirmed = 0
        async with self._ledger.alone_with(slice.number):
            progress = self._ledger.progress(slice.number)
            progress = replace(progress, attempts=progress.attempts + 1)
            done = progress.confirmed
            again = progress.refused
            unsent = (row for row in self._rows(slice) if row["number"] > done or row["number"] in again)
            for chunk in chunks(unsent, self._chunk_messages):
                refused = await self._send_chunk(slice, chunk)
                confirmed += len(chunk) - len(refused)
                numbers = {row["number"] for row in chunk}
                progress = replace(
                    progress,
                    confirmed=max(progress.confirmed, *numbers),
                    refused={n: why for n, why in progress.refused.items() if n not in numbers} | refused,
                    noted_ms=time.time_ns() // 1_000_000,
                )
                self._ledger.note(slice.number, progress)
                if len(progress.refused) > REFUSED_MAX:
                    _, why = progress.refused.popitem()
                    raise TooManyRefused(
                        f"more than {REFUSED_MAX} messages of {slice.destination} were refused, the last one: {why}"
                    )
            if progress.confirmed < slice.last:
                raise LedgerError(f"the plan of slice {slice.number} ends at {progress.confirmed}, not at {slice.last}")
        return confirmed

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _rows(self, slice: Slice) -> Iterator[Row]:
        last = 0
        for row in rows_of(self._ledger.plan / f"slice={slice.number}"):
            if row["number"] == last:
                continue  # the sources contained the message twice
            if row["number"] < last:
                raise LedgerError(f"the plan of slice {slice.number} is not in order at {row['number']}")
            last = row["number"]
            yield row

    async def _send_chunk(self, slice: Slice, chunk: list[Row]) -> dict[int, str]:
        """Send a chunk. Return the refused numbers with the reasons; all other messages have receipts."""
        sendings, refused = self._sendings(slice, chunk)
        if not sendings:
            return refused
        client = await self._connected()
        try:
            for each in sendings.values():
                if wait := self._pace.take():
                    await asyncio.sleep(wait)
                await client.send(each.destination, each.body, each.headers, is_bytes=each.is_bytes)
            await client.flush()
        except BrokerError:
            return refused | await self._send_one_by_one(sendings)
        return refused

    def _sendings(self, slice: Slice, chunk: list[Row]) -> tuple[dict[int, Sending], dict[int, str]]:
        sendings: dict[int, Sending] = {}
        refused: dict[int, str] = {}
        for row in chunk:
            number = row["number"]
            try:
                sendings[number] = sending_of(
                    row,
                    self._run.send_id(slice.number, number),
                    to=self._round.to,
                    is_unending=self._round.is_unending,
                )
            except Unsendable as error:
                refused[number] = f"{row['message_id']}: {error}"
        return sendings, refused

    async def _send_one_by_one(self, sendings: dict[int, Sending]) -> dict[int, str]:
        """Send the messages one by one, to find out which are refused or end the connection. The broker does not store
        a message again, because its id is the same."""
        refused: dict[int, str] = {}
        await self.close()
        for number, each in sendings.items():
            client = await self._connected()
            await asyncio.sleep(self._pace.take())
            try:
                await client.send_confirmed(each.destination, each.body, each.headers, is_bytes=each.is_bytes)
            except BrokerError as error:
                refused[number] = str(error)
                await self.close()
                if len(refused) > REFUSED_MAX:
                    raise TooManyRefused(
                        f"more than {REFUSED_MAX} messages were refused, the last one: {error}"
                    ) from error
        return refused

    async def _connected(self) -> Client:
        if self._client is None:
            round = self._round
            passcode = None if round.passcode_file is None else first_line(round.passcode_file)
            tls = round.tls.context()
            client = Client(round.url, login=round.login, passcode=passcode, tls=tls, window=WINDOW_MESSAGES)
            await client.connect()
            self._client = client
        return self._client


def rows_of(directory: Path) -> Iterator[Row]:
    """Yield the rows of the Parquet files in a directory, file by file. Only ROWS_READ rows are in memory at once."""
    import pyarrow.parquet as parquet

    for path in sorted(directory.glob("*.parquet")):
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS_READ):
                yield from batch.to_pylist()


def chunks(rows: Iterable[Row], messages_max: int) -> Iterator[list[Row]]:
    """Yield groups of at most ``messages_max`` rows with at most CHUNK_BYTES_MAX bytes of bodies, unless one row alone
    has more."""
    return groups(rows, lambda row: len(row["body"] or b""), CHUNK_BYTES_MAX, messages_max)
