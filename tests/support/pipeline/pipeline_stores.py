"""Stores with content for every job, for tests that compare the results."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.store.maintenance.archive import Archive
from tandemmq.store.records.commands import encode_producer_audit, encode_remove, encode_remove_destination
from tandemmq.store.records.marks import encode_clock
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind
from tests.support.pipeline.pipeline_histories import SETTINGS, Life
from tests.support.pipeline.pipeline_journals import NOW_MS, QUEUE, add, write_foreign, write_store

END = b"-qMa4"
_CAUSE = "dlqDeliveryFailureCause"
_DEAD = Destination(DestinationKind.QUEUE, "ActiveMQ.DLQ")
_REMOVED = Destination(DestinationKind.QUEUE, "DLQ.gone")


def write_stores(directory: Path, chance: random.Random) -> tuple[str, ...]:
    """Write stores: a random life with subscriptions, transactions, compactions and an archive; clocks and latencies;
    letters and copies; damage; archived files that differ from the handed-over ones."""
    (directory / "life").mkdir(parents=True)
    life = Life(str(directory / "life"), chance, replace(SETTINGS, archive_data_logs=True, clock_mark_interval=0.01))
    life.run(150)
    life.term.close()
    write_days(directory / "timed", chance, ("it's", "é\N{SNOWMAN}", 'say "q"', "plain"))
    _letters(directory / "letters")
    _damaged(directory / "damaged")
    write_store(directory / "handed", 200)
    archive = directory / "handed" / "data-archive"
    Archive(JournalFiles(str(directory / "handed")), str(archive)).remove([1, 2])
    content = bytearray((archive / "db-1.log").read_bytes())
    content[5_000] ^= 1
    (archive / "db-1.log").write_bytes(content)
    return tuple(str(each) for each in sorted(directory.iterdir()))


def _batch(*records: bytes) -> bytes:
    return encode_batch(list(records))[0][: -len(END)]


def _add(queue: Destination, number: int, at_ms: int, body: bytes = b"x" * 200, **fields: object) -> bytes:
    return add(number, body, queue, body_kind=BodyKind.BYTES, timestamp=at_ms, **fields)


def write_days(directory: Path, chance: random.Random, names: Sequence[str]) -> None:
    """Write three days of queues with these names; half of the messages are taken after different times."""
    directory.mkdir()
    queues = [Destination(DestinationKind.QUEUE, name) for name in names]
    for file in (1, 2, 3):
        content = b""
        for number in range(150):
            at = NOW_MS + 600_000 * (150 * file + number) + chance.randrange(1000)
            queue = queues[number % len(queues)]
            content += _batch(encode_clock(at), _add(queue, 1000 * file + number, at, b"%d" % (number % 40)))
            if number % 2:
                later = at + chance.randrange(1, 500_000)
                taken = 1000 * file + number - len(queues) * chance.randrange(0, 2)
                content += _batch(encode_clock(later), encode_remove(queue, f"ID:tests-1:1:1:{taken}"))
        (directory / f"db-{file}.log").write_bytes(content + END)


def _letters(directory: Path) -> None:
    """Write dead letters of several causes, a removed dead-letter queue, and messages that were stored twice."""
    causes = ("limit 6 of ID:h-61616-17:1", "limit 12 of ID:o-2:9", "expired @1f2e3d4c 0xAF", None)
    letters = [
        _add(
            _REMOVED if number % 7 == 3 else _DEAD,
            number,
            NOW_MS + number,
            properties={} if cause is None else {_CAUSE: cause},
            original_destination=QUEUE,
        )
        for number in range(60)
        for cause in [causes[number % len(causes)]]
    ]
    taken = [encode_remove(_DEAD, f"ID:tests-1:1:1:{number}") for number in range(0, 40, 4)]
    twice = [_add(QUEUE, number, NOW_MS + number) for number in (100, 101, 100)]
    write_foreign(directory / "db-1.log", [letters, twice])
    write_foreign(directory / "db-2.log", [taken, [encode_remove_destination(_REMOVED)], twice[:1]])


def _damaged(directory: Path) -> None:
    directory.mkdir()
    for file in (1, 2, 3):
        content = b"".join(
            _batch(_add(QUEUE, number, NOW_MS + number), encode_producer_audit(bytes(3000)))
            for number in range(100 * file, 100 * file + 20)
        )
        (directory / f"db-{file}.log").write_bytes((content + END).ljust(1 << 17, b"\0"))
    for file, at in ((1, 9_000), (2, 40), (3, 20_000)):
        path = directory / f"db-{file}.log"
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)
    (directory / "db-2.log").write_bytes((directory / "db-2.log").read_bytes()[:50_001])
