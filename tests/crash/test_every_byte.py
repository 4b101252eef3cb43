"""Damage in a small store: each byte is changed once, each file is cut at each length, and each file is lost once.

A start then has one of three outcomes:

    all is there  the store has all promised messages, and no removed message
    refused       the start is refused; the error has the file and the ids of the messages
    told          the store opens; the log has the id of each message that is missing or was removed before

No difference is missing in the log, no message has another body, no other error occurs, and no byte is deleted.

By default the tests try a seeded sample of the positions; with TANDEMMQ_PROVE set (``make prove``), all positions.
"""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.journal.scan import scan
from tandemmq.locker.contract import Holder, LockRequest
from tandemmq.locker.shared_file import SharedFileLocker
from tandemmq.store.damage.report import JournalLost, StoreCorrupt
from tandemmq.store.operations import AddMessage, AddSubscription, Atomic, RemoveMessage
from tandemmq.store.records.commands import AddMessage as AddCommand
from tandemmq.store.records.commands import (
    UpdateMessage,
    decode,
    encode_add,
    encode_commit,
    encode_remove,
    encode_subscription,
)
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tests.support.prove import IS_PROOF, IS_THOROUGH, SEED
from tests.support.store.store_harness import Q, Term

# Number of changes for each store, except in a proof.
FLIPS = 32 if IS_THOROUGH else 12
CUTS = 20 if IS_THOROUGH else 8
DECLARED_FLIPS = 10 if IS_THOROUGH else 4
T = Destination(DestinationKind.TOPIC, "T.A")
SETTINGS = StoreSettings(
    journal_max_file_length=2000,
    checkpoint_interval=3600.0,
    fence_check_interval=0.05,
    disk_reserve=0,
    enable_compaction=False,
)
DECLARED = replace(SETTINGS, ignore_missing_journalfiles=True, check_for_corrupt_journal_files=True)

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600 if IS_PROOF else 120), pytest.mark.promise("damage-is-named")]

Held = dict[str, dict[str, bytes]]  # owner in words -> message id -> body, in order


@dataclass
class Promised:
    """A store directory in memory, and the messages that it promised."""

    files: dict[str, bytes] = field(default_factory=dict)
    held: Held = field(default_factory=dict)
    adds: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)  # file -> (start, stop, id)

    def put(self, directory: Path, changed: dict[str, bytes | None] | None = None) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        for name, content in {**self.files, **(changed or {})}.items():
            if content is not None:
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        directory.mkdir(exist_ok=True)


def held_in(term: Term) -> Held:
    """Return the delivered messages of the store, in order."""
    found: Held = {}
    for owner in term.owners:
        name = str(owner.destination) + (f" for {owner.subscription_name}" if owner.subscription_name else "")
        page = term.page(owner.id)
        assert page.is_end
        messages = {paged.message.message_id: paged.message.body for paged in page.messages}
        assert len(messages) == len(page.messages), "a message twice"
        if messages:
            found[name] = messages
    return found


def live(term: Term, rounds: int) -> None:
    """In each round, add messages to a queue and a topic, remove most of them, and commit a transaction."""
    queue = term.store.queue(Q)
    known = {owner.subscription_name: owner.id for owner in term.owners if owner.subscription_name}
    for name in {"s1", "s2"} - known.keys():
        known[name] = term.store.subscription("c", name, T)
        term.store.append(AddSubscription(known[name], encode_subscription(T, "c", name)))
    for number in range(rounds):
        added = [term.add(Q, f"{term.store.epoch}.{number}.{n}".encode() * 9) for n in range(4)]
        published = term.add(T, b"topic" * 8, owners=(known["s1"], known["s2"]))
        term.wait(lambda last=published: last in term.durable_operations)  # type: ignore[misc]
        transaction = LocalTransactionId("ID:c", number)
        message = term.message(Q, b"in a transaction")
        parts: list[AddMessage | RemoveMessage] = [
            AddMessage(message, (queue,), encode_add(message, encode_message(message), transaction)),
            RemoveMessage(
                queue,
                added[0].order_key,
                added[0].location,
                added[0].message.message_id,
                encode_remove(Q, added[0].message.message_id, transaction),
                size=added[0].size,
            ),
        ]
        whole = Atomic(parts, encode_commit(transaction))
        term.store.append(whole)
        removals = [term.remove(each, queue) for each in added[1:3]]
        removals.append(term.remove(published, known["s1"], "c:s1"))
        term.wait(lambda last=removals[-1]: last in term.durable_operations)  # type: ignore[misc]


def make(directory: Path, ending: str) -> Promised:
    """Make a store in two lives. ``ending`` "closed": the last checkpoint is at the end of the journal; "killed": the
    second life makes no checkpoint."""
    directory.mkdir()
    locker = SharedFileLocker(LockRequest(str(directory), Holder("a", pid=os.getpid(), host="here")))
    assert locker.try_acquire()
    locker.announce(2, "http://127.0.0.1:1")
    first = Term(str(directory), "a", SETTINGS)
    live(first, 3)
    first.close()
    second = Term(str(directory), "a", SETTINGS)
    live(second, 2)
    if ending == "closed":
        second.close()
    else:
        second.crash()
    locker.release()
    promised = Promised()
    for root, _, names in os.walk(directory):
        for name in names:
            path = Path(root) / name
            if not name.startswith(".next-"):
                promised.files[str(path.relative_to(directory))] = path.read_bytes()
    copy = directory.with_name("as-it-was")
    promised.put(copy)
    term = Term(str(copy), "a", SETTINGS)
    promised.held = held_in(term)
    term.close()
    assert check(str(copy)).is_clean
    shutil.rmtree(copy)
    ids = {message_id for held in promised.held.values() for message_id in held}
    files = JournalFiles(str(directory))
    for file in files.list():
        for batch in scan(files, file):
            for offset, payload in batch.records:
                command = decode(payload)
                add = command.add if isinstance(command, UpdateMessage) else command
                if isinstance(add, AddCommand) and add.message_id in ids:
                    stop = offset + len(payload) + 5
                    promised.adds.setdefault(file, []).append((offset, stop, add.message_id))
    assert len(promised.adds) > 2, "live messages in several files"
    return promised


@pytest.fixture(scope="module", params=["closed", "killed"])
def promised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Promised:
    return make(tmp_path_factory.mktemp("made") / "store", request.param)


@pytest.fixture
def scratch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Path:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    caplog.set_level(logging.WARNING)
    return tmp_path / "store"


def concerned(promised: Promised, name: str, start: int, stop: int) -> set[str]:
    """Return the ids of live messages whose records have a byte from ``start`` to before ``stop`` of a journal file."""
    file = file_id(name)
    return {each[2] for each in promised.adds.get(file or 0, ()) if each[0] < stop and each[1] > start}


def open_again(directory: Path, settings: StoreSettings = SETTINGS) -> Held:
    """Return the delivered messages. A broker that finds damage in its index becomes a standby and restarts once."""
    locker = SharedFileLocker(LockRequest(str(directory), Holder("a", pid=os.getpid(), host="here")))
    assert locker.try_acquire(), "whatever stands in the lock's file, the lock can be had"
    try:
        for is_last in (False, True):
            term = Term(str(directory), "a", settings)
            try:
                found = held_in(term)
                term.close()
                return found
            except BaseException:
                term.crash()
                if is_last or term.lost is None or "Index" not in type(term.lost).__name__:
                    raise
        raise AssertionError("unreachable")
    finally:
        locker.release()


def judge(promised: Promised, directory: Path, where: str, hit: set[str], caplog: pytest.LogCaptureFixture) -> str:
    """Open the store, compare it with what it promised, and return which of the three outcomes it is."""
    before = {path: path.read_bytes() for path in directory.glob("db-*.log")}
    caplog.clear()
    refusal: StoreCorrupt | JournalLost | None = None
    found: Held = {}
    try:
        found = open_again(directory)
    except (StoreCorrupt, JournalLost) as error:
        refusal = error
    if refusal is not None:
        outcome = "refused"
        assert "db-" in str(refusal), where
        assert hit <= set(refusal.message_ids), f"{where}: refused without {hit - set(refusal.message_ids)}: {refusal}"
    else:
        text = caplog.text
        outcome = "all is there"
        for name in promised.held.keys() | found.keys():
            should, has = promised.held.get(name, {}), found.get(name, {})
            for message_id in should.keys() ^ has.keys():
                what = "missing" if message_id in should else "back again"
                assert message_id in text, f"{where}: {name}: {message_id} is {what}, and no warning names it"
                outcome = "told"
            both = [message_id for message_id in should if message_id in has]
            assert both == [message_id for message_id in has if message_id in should], f"{where}: another order"
            for message_id in both:
                assert has[message_id] == should[message_id], f"{where}: {message_id} has another body"
    for path, content in before.items():
        assert path.exists(), f"{where}: {path.name} was deleted"
        assert path.read_bytes() == content, f"{where}: {path.name} was written on"
    return outcome


def positions(name: str, content: bytes) -> list[int]:
    """Return all positions of a file, but only those near the ends of a long row of prepared zeros."""
    if not name.endswith((".log", "db.free")):
        return list(range(len(content)))
    rows = [match.span() for match in re.finditer(rb"\0{200,}", content)]
    skipped = {at for start, stop in rows for at in range(start + 16, stop - 16)}
    return [at for at in range(len(content)) if at not in skipped]


def sample(dice: random.Random, promised: Promised, count: int) -> list[tuple[str, int]]:
    """Return (name, position) of all bytes for a proof; otherwise of some, most of them in the journal."""
    places = [(name, at) for name, content in sorted(promised.files.items()) for at in positions(name, content)]
    if IS_PROOF:
        return places
    journal = [place for place in places if place[0].startswith("db-")]
    rest = [place for place in places if not place[0].startswith("db-")]
    return dice.sample(journal, count * 3 // 4) + dice.sample(rest, count - count * 3 // 4)


class Outcomes:
    """Number of each outcome, and the errors. ``tell`` reports them at the end of the test."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def of(self, run: Callable[[], str], where: str) -> None:
        try:
            outcome = run()
        except Exception as error:
            outcome = "wrong"
            self.wrong.append(f"{where}: {type(error).__name__}: {error}")
        self.counts[outcome] += 1

    def tell(self) -> None:
        print(self.counts)
        assert not self.wrong, "\n".join(self.wrong[:50])


@pytest.mark.parametrize(("does", "count"), [("flip", FLIPS), ("cut", CUTS)])
def test_no_changed_byte_or_cut_file_is_silent(
    promised: Promised, scratch: Path, caplog: pytest.LogCaptureFixture, does: str, count: int
) -> None:
    dice = random.Random(SEED)
    outcomes = Outcomes()
    for name, at in sample(dice, promised, count):
        content = bytearray(promised.files[name])
        if does == "flip":
            content[at] ^= 1 << dice.randrange(8)
            hit = concerned(promised, name, at, at + 1)
        else:
            # Only an index can show which messages were in the bytes that are cut off.
            del content[at:]
            hit = set()
        promised.put(scratch, {name: bytes(content)})
        where = f"{name}, {does} at {at}"
        outcomes.of(partial(judge, promised, scratch, where, hit, caplog), where)
    outcomes.tell()
    assert outcomes.counts["refused"] + outcomes.counts["told"] > 0
    if does == "flip":
        assert outcomes.counts["all is there"] > 0


def test_no_lost_file_is_silent(promised: Promised, scratch: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in promised.files:
        promised.put(scratch, {name: None})
        outcome = judge(promised, scratch, f"{name} lost", set(), caplog)
        print(name, outcome)
        if name.startswith("db-"):
            assert outcome == "refused", name


def homes(promised: Promised, message_id: str) -> list[str]:
    """Return the files that have a record of the message."""
    return [f"db-{file}.log" for file, adds in promised.adds.items() if any(each[2] == message_id for each in adds)]


def judge_declared(promised: Promised, directory: Path, where: str, caplog: pytest.LogCaptureFixture) -> str:
    """Open in the declared mode, then as usual, then without the index. The content is the same each time, and the log
    has each difference from what was promised."""
    caplog.clear()
    found = open_again(directory, DECLARED)
    text = caplog.text
    for name in promised.held.keys() | found.keys():
        for message_id in promised.held.get(name, {}).keys() ^ found.get(name, {}).keys():
            # If no index knew a lost file, the log can only have the name of the file.
            is_logged = message_id in text or any(f"{lost} is missing" in text for lost in homes(promised, message_id))
            assert is_logged, f"{where}: {name}: {message_id} is wrong, and the log has no warning"
        for message_id, body in found.get(name, {}).items():
            assert promised.held.get(name, {}).get(message_id, body) == body, f"{where}: another body"
    assert open_again(directory) == found, f"{where}: another content at the next start"
    shutil.rmtree(directory / "index")
    assert open_again(directory) == found, f"{where}: another content by the journal alone"
    report = check(str(directory))
    assert report.is_clean, f"{where}: {report.problems}"
    is_aside = any((directory / "quarantine").glob("*.json")) if (directory / "quarantine").exists() else False
    return "stepped over" if is_aside else "all is there"


def test_declared_damage_is_settled_once_and_for_all(
    promised: Promised, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(SEED)
    outcomes = Outcomes()
    for name, at in sample(dice, promised, DECLARED_FLIPS):
        if not name.startswith("db-"):
            continue
        content = bytearray(promised.files[name])
        content[at] ^= 1 << dice.randrange(8)
        promised.put(scratch, {name: bytes(content)})
        where = f"{name}, byte {at}"
        outcomes.of(partial(judge_declared, promised, scratch, where, caplog), where)
    for name in promised.files:
        if name.startswith("db-"):
            promised.put(scratch, {name: None})
            where = f"{name} lost"
            outcomes.of(partial(judge_declared, promised, scratch, where, caplog), where)
    outcomes.tell()
    assert outcomes.counts["stepped over"] > 0
