"""Pages by priority: a message is found under its priority, in order, whatever happened to it since it was stored."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tandemmq.index.index import Index
from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    EndTransaction,
    Page,
    PagedMessage,
    PrepareTransaction,
    RemoveMessage,
)
from tandemmq.store.records.commands import (
    decode,
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_subscription,
    plain_add_or_remove,
)
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state import keys
from tandemmq.store.tools.check import check
from tests.support.store.store_harness import KIB, Q, Term

pytestmark = pytest.mark.promise("priorities-hold")

T = Destination(DestinationKind.TOPIC, "T.A")
# Files and checkpoints so small that every message sees several of each, and copies.
SMALL = StoreSettings(
    journal_max_file_length=16 * KIB,
    checkpoint_records=25,
    cleanup_interval=0.0,
    fence_check_interval=0.01,
    compaction_rate=1 << 30,
)
XID = XaTransactionId(5, b"branch", b"global")


def operation(term: Term, priority: int, *, owners: tuple[int, ...] = (), transaction: object = None) -> AddMessage:
    message = term.message(T if owners else Q, os.urandom(200))
    message.priority = priority
    payload = encode_add(message, encode_message(message), transaction)  # type: ignore[arg-type]
    return AddMessage(message, owners or (term.store.queue(Q),), payload)


def add(term: Term, *priorities: int, owners: tuple[int, ...] = ()) -> list[AddMessage]:
    before = len(term.durable_operations)
    added = [operation(term, priority, owners=owners) for priority in priorities]
    for each in added:
        term.store.append(each)
    term.wait_durable(before + len(added))
    return added


def by_priority(term: Term, owner: int, count: int = 7) -> list[str]:
    """The ids of all messages of ``owner``, the highest priority first."""
    return [each.message.message_id for each in paged(term, owner, count)]


def paged(term: Term, owner: int, count: int = 7) -> list[PagedMessage]:
    found: list[PagedMessage] = []
    for priority in range(9, -1, -1):
        after = 0
        while True:
            page = Page(owner, after, count, 1 << 30, priority=priority)
            term.store.append(page)
            term.wait(lambda page=page: page in term.durable_operations)  # type: ignore[misc]
            assert {each.message.priority for each in page.messages} <= {priority}
            found += page.messages
            if page.is_end:
                break
            after = page.messages[-1].order_key
    return found


def in_order(added: list[AddMessage]) -> list[str]:
    return [each.message.message_id for each in sorted(added, key=lambda each: -each.message.priority)]


def test_priorities_survive_restarts_removals_and_copies(tmp_path: Path) -> None:
    chance = random.Random(1)
    term = Term(str(tmp_path), settings=SMALL)
    held: list[AddMessage] = []
    copied = 0
    for _ in range(6):
        held += add(term, *(chance.choice((4, 4, 4, 9, 0)) for _ in range(80)))
        kept = set(chance.sample([each.message.message_id for each in held], 60))
        for each in paged(term, term.store.queue(Q)):
            if each.message.message_id not in kept:
                term.remove(each, term.store.queue(Q))
        held = [each for each in held if each.message.message_id in kept]
        assert by_priority(term, term.store.queue(Q)) == in_order(held)
        term.close()
        copied += term.store.figures.bytes_copied
        assert ranks(tmp_path) > 0
        term = Term(str(tmp_path), settings=SMALL)
        assert by_priority(term, term.store.queue(Q)) == in_order(held)
    assert copied > 0
    term.crash()
    assert check(str(tmp_path)).problems == []
    shutil.rmtree(tmp_path / "index")
    with Term(str(tmp_path), settings=SMALL) as term:
        assert by_priority(term, term.store.queue(Q)) == in_order(held)
    assert check(str(tmp_path)).problems == []


def test_as_long_as_all_have_the_default_priority_the_index_has_no_ranks(tmp_path: Path) -> None:
    with Term(str(tmp_path), settings=SMALL) as term:
        added = add(term, *[4] * 60)
        assert by_priority(term, term.store.queue(Q)) == in_order(added)
    assert ranks(tmp_path) == 0


def test_a_queue_that_was_emptied_begins_without_ranks(tmp_path: Path) -> None:
    with Term(str(tmp_path), settings=SMALL) as term:
        for each in add(term, 9, 4, 0):
            term.remove(each, term.store.queue(Q))
        add(term)
    with Term(str(tmp_path), settings=SMALL) as term:
        added = add(term, 4, 4)
    assert ranks(tmp_path) == 0
    with Term(str(tmp_path), settings=SMALL) as term:
        assert by_priority(term, term.store.queue(Q)) == in_order(added)


def ranks(directory: Path) -> int:
    with Index.open(str(directory / "index" / "a")) as index:
        return sum(1 for _ in index.scan(keys.RANK, b"S"))


def test_transactions_bring_messages_of_all_priorities(tmp_path: Path) -> None:
    term = Term(str(tmp_path), settings=SMALL)
    held = add(term, 4, 0)
    local = LocalTransactionId("c", 1)
    together = [operation(term, priority, transaction=local) for priority in (0, 9, 4)]
    term.store.append(Atomic(together, encode_commit(local)))
    prepared = [operation(term, priority, transaction=XID) for priority in (5, 9)]
    withheld = held[0]
    payload = encode_remove(Q, withheld.message.message_id, XID, None, b"ack")
    removal = RemoveMessage(
        term.store.queue(Q), withheld.order_key, withheld.location, withheld.message.message_id, payload
    )
    term.store.append(PrepareTransaction(XID, [*prepared, removal], encode_prepare(XID)))
    assert by_priority(term, term.store.queue(Q)) == in_order([held[1], *together])

    term.crash()
    term = Term(str(tmp_path), settings=SMALL)
    assert by_priority(term, term.store.queue(Q)) == in_order([held[1], *together])
    term.store.append(EndTransaction(XID, True, encode_commit(XID)))
    assert by_priority(term, term.store.queue(Q)) == in_order([held[1], *together, *prepared])
    term.crash()
    with Term(str(tmp_path), settings=SMALL) as term:
        assert by_priority(term, term.store.queue(Q)) == in_order([held[1], *together, *prepared])
    assert check(str(tmp_path)).problems == []


def test_durable_subscriptions_have_each_their_own(tmp_path: Path) -> None:
    term = Term(str(tmp_path), settings=SMALL)
    owners = []
    for name in ("one", "two"):
        owner = term.store.subscription("c", name, T)
        term.store.append(AddSubscription(owner, encode_subscription(T, "c", name)))
        owners.append(owner)
    add(term)
    added = add(term, 4, 9, 0, 9, owners=tuple(owners))
    term.remove(added[1], owners[0], "c:one")
    more = add(term, *[5, 4] * 30, owners=tuple(owners))
    term.close()
    with Term(str(tmp_path), settings=SMALL) as term:
        assert by_priority(term, owners[0]) == in_order([added[0], *added[2:], *more])
        assert by_priority(term, owners[1]) == in_order([*added, *more])
    assert check(str(tmp_path)).problems == []


@pytest.mark.promise("upgrade-loses-nothing")
def test_an_index_without_priorities_is_built_again(tmp_path: Path) -> None:
    # Of 60 messages of priorities 4, 9, 0, 4, 6 and so on every seventh was removed.
    with zipfile.ZipFile(Path(__file__).parent / "former_index.zip") as former:
        former.extractall(tmp_path)
    (note,) = check(str(tmp_path)).notes
    assert "will be set aside" in note
    held = [f"body {number}".encode() for number in range(60) if number % 7]
    wanted = sorted(held, key=lambda body: -(4, 9, 0, 4, 6)[int(body[5:]) % 5])

    with Term(str(tmp_path), settings=SMALL) as term:
        found = [each.message.body for each in paged(term, term.store.queue(Q))]

    assert found == wanted
    assert [path.name.partition(".aside-")[0] for path in (tmp_path / "index").iterdir()].count("a") == 2
    assert check(str(tmp_path)).problems == []


class PrioritiesMachine(RuleBasedStateMachine):
    """Messages of mixed priorities come and go, with crashes, stops and rebuilt indexes between."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.held: dict[str, int] = {}  # id -> priority, in order
        self.term = Term(self.directory, settings=SMALL)

    @rule(priorities=st.lists(st.sampled_from([4, 4, 4, 9, 0]), min_size=1, max_size=40))
    def add(self, priorities: list[int]) -> None:
        for each in add(self.term, *priorities):
            self.held[each.message.message_id] = each.message.priority

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        found = paged(self.term, self.term.store.queue(Q))
        gone = data.draw(st.lists(st.sampled_from(range(len(found))), max_size=40, unique=True))
        before = len(self.term.durable_operations)
        for number in gone:
            self.term.remove(found[number], self.term.store.queue(Q))
            del self.held[found[number].message.message_id]
        self.term.wait_durable(before + len(gone))

    @rule(is_crash=st.booleans(), is_rebuilt=st.booleans())
    def restart(self, is_crash: bool, is_rebuilt: bool) -> None:
        self.term.crash() if is_crash else self.term.close()
        if is_rebuilt:
            shutil.rmtree(os.path.join(self.directory, "index"))
        self.term = Term(self.directory, settings=SMALL)

    @rule(count=st.integers(1, 9))
    def read(self, count: int) -> None:
        wanted = sorted(self.held, key=lambda each: -self.held[each])
        assert by_priority(self.term, self.term.store.queue(Q), count) == wanted

    def teardown(self) -> None:
        self.read(5)
        self.term.close()
        assert check(self.directory).problems == []
        shutil.rmtree(self.directory)


TestPriorities = PrioritiesMachine.TestCase
TestPriorities.settings = settings(max_examples=20, stateful_step_count=15, deadline=None, print_blob=True)


@pytest.mark.parametrize(("priority", "kept"), [(-1, 0), (0, 0), (4, 4), (9, 9), (10, 9), (127, 9), (-128, 0)])
def test_a_priority_beyond_those_of_jms_counts_as_the_next_of_them(priority: int, kept: int) -> None:
    message = Message(Q, "ID:x:1:1:1", b"body", BodyKind.BYTES, persistent=True)
    message.priority = priority
    payload = encode_add(message, b"frame")

    command = decode(payload)
    decode(payload)  # destinations are remembered
    plain = plain_add_or_remove(payload)
    assert (command.priority, keys.rank_of(priority)) == (kept, 9 - kept)  # type: ignore[union-attr]
    assert plain is not None
    assert plain[4] == kept
