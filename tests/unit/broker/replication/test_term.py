"""A term: its lease, its waits, its end by another master, and changes of its voters."""

# proves: an-epoch-has-one-writer, term

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemmq.broker.replication.member import SetAuthority
from tandemmq.broker.replication.messages import Alive, Bytes, FinalUpTo, Have
from tandemmq.broker.replication.quorum import NOWHERE, ChangeRefused, Voters
from tandemmq.broker.replication.stream import BATCHES_MIN, CHUNK_BYTES, Stream
from tandemmq.broker.replication.term import LINEAGE_MAX, Term, header_of_term
from tandemmq.config.replication import sync_of
from tandemmq.journal.errors import Deposed
from tandemmq.journal.files import JournalFiles
from tandemmq.store.threads import OS_THREADS
from tandemmq.store.writer.journal_end import NoProof
from tests.support.replication.noted_link import NotedLink
from tests.support.virtual_time import HandClock

OWN, TWO, THREE, FOUR = (f"{number:032x}" for number in (1, 2, 3, 4))
VOTERS = Voters((OWN, TWO, THREE), {OWN: "n1", TWO: "n2", THREE: "n3"})
T = 10.0
EPOCH = 5
FIRST = (5, 100)


class Case:
    def __init__(self, directory: Path, sync: str = "quorum_disk", now: float = 1_000.0) -> None:
        self.clock = HandClock()
        self.clock.now = now
        self.files = JournalFiles(str(directory))
        self.add_file(EPOCH)
        self.add_file(EPOCH + 1)
        self.term = Term(
            OWN,
            EPOCH,
            header_of_term("5e" * 16, VOTERS, [(1, 3, 40)]),
            self.files,
            sync=sync_of(sync),
            timeout_seconds=T,
            granted={OWN: self.clock.now, TWO: self.clock.now},
            threads=self.clock,
        )
        self.links: dict[str, NotedLink] = {}

    def add_file(self, file: int) -> None:
        Path(self.files.path(file)).write_bytes(bytes(4_096))

    def follow(self, number: int, life: int = 1) -> NotedLink:
        link = NotedLink(number, life)
        self.term.drop(link.member.store)
        self.term.add(Stream(link, self.term.journal, self.term.marks.written, (), OS_THREADS, rate=0))
        self.links[link.member.store] = link
        return link

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(6_000):
            if condition():
                return
            OS_THREADS.sleep(0.005)
        raise AssertionError("it does not happen")

    def begin(self) -> None:
        """The first batch is written, and on the own disk."""
        self.term.begin(lambda: (EPOCH,))
        self.wrote(FIRST)

    def wrote(self, place: tuple[int, int]) -> None:
        self.term.wrote(place[0], 0, b"x", place[1])
        self.term.synced(*place)

    def have(self, store: str, place: tuple[int, int], on: Any = "disk") -> None:
        self.term.have(self.links[store], Have(EPOCH, *place, on, 0))

    def settle(self, place: tuple[int, int], alive: Callable[[], object], *, final: bool = False) -> None:
        self.term.settle(place, must_be_final=final, alive=alive)


def not_asked() -> None:
    raise AssertionError("it does not wait")


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.term.end()


def test_a_disk_that_returns_with_less_counts_for_its_content(case: Case) -> None:
    """A new link shows the lost data. A late FOLLOW on a link reports less than earlier HAVEs, and has no effect."""
    place, less, more = (EPOCH, 200), (EPOCH, 150), (EPOCH, 300)
    case.begin()
    case.wrote(more)
    assert case.term.returned(case.follow(2), NOWHERE, NOWHERE) == NOWHERE
    case.have(TWO, place)
    for common, acknowledged, counts, is_new in (
        (less, NOWHERE, place, False),
        (place, place, place, True),
        (less, place, less, True),
        (less, place, less, True),
    ):
        link = case.follow(2) if is_new else case.links[TWO]
        assert case.term.returned(link, common, NOWHERE) == acknowledged
        assert case.term.marks.places()[TWO] == counts
    assert case.term.marks.final == place, "what was final stays so"
    known = (EPOCH, 120)
    assert case.term.returned(case.follow(3), FIRST, known) == known, "said in a former term"


def test_a_disk_lacks_no_file_that_was_given_up(case: Case) -> None:
    case.begin()
    fifth, sixth, seventh = (EPOCH, 100), (EPOCH + 1, 80), (EPOCH + 2, 50)
    for file, end in (fifth, sixth, seventh):
        case.add_file(file)
        case.wrote((file, end))
        case.term.sealed(file, end)
    case.add_file(EPOCH + 3)
    case.wrote((EPOCH + 3, 10))
    for gone, common, lacks in (
        (None, sixth, seventh),
        (seventh, fifth, sixth),
        (seventh, sixth, sixth),
        (sixth, fifth, fifth),
        (fifth, NOWHERE, NOWHERE),
    ):
        if gone is not None:
            Path(case.files.path(gone[0])).unlink(missing_ok=True)
        assert case.term.returned(case.follow(4), common, seventh) == lacks


# ---- the lease


def test_the_lease_begins_when_the_promises_were_asked_for(case: Case) -> None:
    assert case.term.lease_from == 1_000.0
    case.clock.now += 0.9 * T - 0.001
    assert case.term.has_lease
    case.clock.now += 0.002
    assert not case.term.has_lease


def test_an_answer_counts_from_before_its_question_was_sent(case: Case) -> None:
    link = case.follow(2)
    case.clock.now = 1_004.0
    case.term.ask_alive(10_000)
    (asked,) = link.wait(Alive)
    assert isinstance(asked, Alive)
    case.clock.now = 1_008.0
    case.term.alive_answered(TWO, asked.number)
    assert case.term.lease_from == 1_004.0


def test_an_older_answer_does_not_shorten_it(case: Case) -> None:
    for now in (1_001.0, 1_002.0):
        case.clock.now = now
        case.term.ask_alive(10_000)
    case.term.alive_answered(TWO, 2)
    case.term.alive_answered(TWO, 1)
    case.term.alive_answered(TWO, 99)  # never asked
    assert case.term.lease_from == 1_002.0


def test_an_answer_without_a_vote_keeps_no_lease(case: Case) -> None:
    case.clock.now = 1_020.0
    case.term.ask_alive(10_000)
    case.term.alive_answered(FOUR, 1)
    assert not case.term.has_lease
    case.term.alive_answered(THREE, 1)
    assert case.term.has_lease


def test_a_clock_that_begins_at_zero_is_a_clock(tmp_path: Path) -> None:
    case = Case(tmp_path, now=0.0)
    case.clock.now = 1.0
    assert case.term.lease_from == 0.0


# ---- waiting


def test_it_waits_until_a_quorum_has_it(case: Case) -> None:
    case.begin()
    case.follow(2)
    asked: list[int] = []

    def alive() -> None:
        asked.append(len(asked))
        case.have(TWO, FIRST, "memory" if len(asked) == 1 else "disk")

    case.settle(FIRST, alive, final=True)
    assert len(asked) == 2
    case.settle(FIRST, not_asked, final=True)
    case.settle(FIRST, not_asked)


def test_confirmed_may_be_sooner_than_final(tmp_path: Path) -> None:
    case = Case(tmp_path, "quorum_mem")
    case.begin()
    case.follow(2)
    case.settle(FIRST, lambda: case.have(TWO, FIRST, "memory"))
    assert case.term.marks.final == NOWHERE
    case.settle(FIRST, lambda: case.have(TWO, FIRST), final=True)
    case.term.end()


def test_the_time_of_batches_determines_the_pace_of_a_catch_up(case: Case) -> None:
    case.begin()
    case.follow(2)

    def confirmed_after(seconds: float) -> None:
        place = (EPOCH, case.term.marks.written[1] + 1)

        def alive() -> None:
            case.clock.now += seconds
            case.have(TWO, place)

        case.wrote(place)
        case.settle(place, alive)
        case.clock.now += 0.1
        case.term.alive_answered(TWO, case.term.alive(1_000).number)

    for _ in range(BATCHES_MIN):
        confirmed_after(0.02)
    assert case.term.journal.pace.seconds_for(CHUNK_BYTES) == 0
    for _ in range(5):
        confirmed_after(0.02)
        assert case.term.journal.pace.seconds_for(CHUNK_BYTES) == 0
    confirmed_after(0.5)
    assert case.term.journal.pace.seconds_for(CHUNK_BYTES) > 0


def test_reports_of_a_follower_that_left_are_ignored(case: Case) -> None:
    case.begin()
    link = case.follow(2)
    case.term.drop(link.member.store)
    case.term.have(link, Have(EPOCH, *FIRST, "disk", 0))
    with pytest.raises(AssertionError, match="it does not wait"):
        case.settle(FIRST, not_asked)


def test_without_a_lease_nothing_is_confirmed(case: Case) -> None:
    case.begin()
    case.follow(2)

    def alive() -> None:
        case.clock.now += 0.9 * T
        case.have(TWO, FIRST)  # it has it, and may have promised to another node since

    with pytest.raises(NoProof):
        case.settle(FIRST, alive)
    assert case.term.marks.final == FIRST


def test_without_a_remote_part_a_lease_is_needed_too(tmp_path: Path) -> None:
    case = Case(tmp_path, "local_disk")
    case.begin()
    case.settle(FIRST, not_asked)
    case.clock.now += 0.9 * T
    with pytest.raises(NoProof):
        case.settle(FIRST, not_asked)


def test_once_deposed_nothing_is_written_or_confirmed(case: Case) -> None:
    case.begin()
    case.follow(2)
    case.have(TWO, FIRST)
    with pytest.raises(Deposed):
        case.settle((5, 200), case.term.depose)
    with pytest.raises(Deposed):
        case.settle(FIRST, not_asked)
    with pytest.raises(Deposed):
        case.term.wrote(5, 100, b"x", 200)
    assert case.term.marks.written == FIRST
    assert not case.term.has_ended.is_set()
    case.term.end()
    assert case.term.has_ended.is_set()


def test_a_term_that_was_not_taken_cannot_begin_later_and_a_begun_one_ends_itself(case: Case, tmp_path: Path) -> None:
    case.term.end_unbegun()
    assert case.term.has_ended.is_set()
    with pytest.raises(Deposed):
        case.term.begin(tuple)
    assert not case.term.has_begun
    other = Case(tmp_path)
    other.begin()
    other.term.end_unbegun()
    assert (other.term.is_over, other.term.has_ended.is_set()) == (False, False)
    other.term.end()


# ---- followers


def test_the_final_place_is_sent_to_all_once(case: Case) -> None:
    case.begin()
    two, three = case.follow(2), case.follow(3)
    case.have(TWO, FIRST)
    case.have(THREE, FIRST)
    told = [[message for message in link.sent if isinstance(message, FinalUpTo)] for link in (two, three)]
    assert told == [[], []], "not with each batch"
    case.term.send_final()
    case.term.send_final()
    for link in (two, three):
        assert [message for message in link.sent if isinstance(message, FinalUpTo)] == [FinalUpTo(EPOCH, *FIRST)]


def test_only_what_comes_on_the_link_of_its_stream_counts(case: Case) -> None:
    """Messages under way on the link of a former life were in the memory of that life."""
    case.begin()
    former = case.follow(2)
    case.follow(2, life=2)
    case.term.have(former, Have(EPOCH, *FIRST, "disk", 0))
    assert case.term.marks.final == NOWHERE
    case.have(TWO, FIRST)
    assert case.term.marks.final == FIRST


def test_a_memory_is_forgotten_with_its_stream(tmp_path: Path) -> None:
    case = Case(tmp_path, "quorum_mem")
    case.begin()
    case.follow(2)
    case.have(TWO, (5, 300), "memory")
    case.follow(2, life=2)
    case.wrote((5, 200))
    assert case.term.marks.confirmed == FIRST
    case.term.remove(case.term.streams[TWO])
    assert not case.term.streams
    case.term.end()


def test_a_long_batch_is_sent_in_pieces(case: Case) -> None:
    data = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"end"
    case.begin()
    link = case.follow(2)
    case.until(lambda: case.term.streams[TWO].is_live)
    case.term.wrote(5, 100, data, 100 + len(data) - 5)
    pieces = [piece for piece in link.wait(Bytes, 3) if isinstance(piece, Bytes)]
    assert b"".join(piece.data for piece in pieces) == data
    assert [piece.offset for piece in pieces] == [100, 100 + CHUNK_BYTES, 100 + 2 * CHUNK_BYTES]
    assert [piece.end for piece in pieces] == [0, 0, 100 + len(data) - 5]
    assert {piece.length for piece in pieces} == {4_096}


def test_a_file_whose_name_is_gone_deposes(case: Case) -> None:
    case.begin()
    Path(case.files.path(5)).unlink()
    with pytest.raises(Deposed):
        case.term.wrote(5, 100, b"x", 200)


def test_a_lineage_is_bounded() -> None:
    header = header_of_term("5e" * 16, VOTERS, [(epoch, epoch, 1) for epoch in range(LINEAGE_MAX + 5)])
    assert len(header.lineage) == LINEAGE_MAX
    assert header.lineage[-1] == (LINEAGE_MAX + 4, LINEAGE_MAX + 4, 1)


# ---- a change of voters


def final_first(case: Case) -> None:
    case.begin()
    case.follow(2)
    case.have(TWO, FIRST)


def test_no_change_before_the_first_batch_is_final(case: Case) -> None:
    case.begin()
    with pytest.raises(ChangeRefused):
        case.term.propose(VOTERS.remove(THREE))


def test_new_voters_count_from_their_header_on_and_one_change_at_a_time(case: Case) -> None:
    final_first(case)
    four = VOTERS.add(FOUR, "n4")
    case.term.propose(four)
    assert case.term.marks.voters == VOTERS
    with pytest.raises(ChangeRefused):
        case.term.propose(VOTERS.remove(THREE))
    case.wrote((5, 200))
    assert case.term.marks.voters == VOTERS, "a batch in the same file"
    assert case.term.next_header().voters == four.ids
    case.wrote((6, 50))
    assert case.term.marks.voters == four
    assert case.term.header.voters == four.ids
    case.have(TWO, (6, 50))
    assert case.term.marks.final == FIRST, "two of four are no quorum"
    with pytest.raises(ChangeRefused):
        case.term.propose(four.remove(THREE))
    case.follow(4)
    case.have(FOUR, (6, 50))
    assert case.term.marks.final == (6, 50)
    case.term.propose(four.remove(THREE))


def test_a_header_that_was_made_before_the_proposal_brings_no_change(case: Case) -> None:
    final_first(case)
    four = VOTERS.add(FOUR, "n4")
    assert case.term.next_header().voters == VOTERS.ids
    case.term.propose(four)
    case.wrote((6, 50))
    assert case.term.marks.voters == VOTERS
    case.add_file(7)
    assert case.term.next_header().voters == four.ids
    case.wrote((7, 50))
    assert case.term.marks.voters == four


def test_a_change_that_is_given_up_may_be_followed_by_another(case: Case) -> None:
    final_first(case)
    case.term.propose(VOTERS.add(FOUR, "n4"))
    case.term.give_up_change()
    assert case.term.next_header().voters == VOTERS.ids
    case.term.propose(VOTERS.remove(THREE))
    case.term.next_header()
    case.term.give_up_change()
    with pytest.raises(ChangeRefused):  # the header may be there
        case.term.propose(VOTERS.add(FOUR, "n4"))


# ---- an epoch has one writer: a late or repeated request gets none


def of(term: Any) -> SetAuthority:
    return SetAuthority(cast(Any, SimpleNamespace(state=SimpleNamespace(term=term))))


def test_an_epoch_has_one_writer(case: Case) -> None:
    with pytest.raises(Deposed):
        of(None).first_file(4)
    with pytest.raises(Deposed):
        of(case.term).first_file(EPOCH)
    assert of(case.term).first_file(4) == EPOCH
    case.begin()
    with pytest.raises(Deposed):
        of(case.term).first_file(4)


def test_an_epoch_that_is_over_is_not_begun(case: Case) -> None:
    case.term.depose()
    with pytest.raises(Deposed):
        of(case.term).first_file(4)
