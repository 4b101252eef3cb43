"""One replica and its answers, message by message, by the test's clock: the rules of the format page."""

# proves: replication-rules, left-copy-is-synced, resigns-when-nothing-is-written, lease-from-before-the-question
# proves: follows-none-while-paused, master-stays-a-voter
# proves: answer-to-this-question, epoch-above-every-file, founded-by-all

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from tandemmq.broker.replication.leader import without_voter
from tandemmq.broker.replication.messages import (
    Alive,
    AliveAnswer,
    Begin,
    Bytes,
    FinalUpTo,
    Follow,
    Have,
    Message,
    PreVote,
    PreVoteAnswer,
    Promise,
    PromiseAnswer,
    Resign,
    Sealed,
)
from tandemmq.broker.replication.promise import LIVES_MAX, PromiseFile
from tandemmq.broker.replication.quorum import BEFORE_ALL, ChangeRefused, Position
from tandemmq.broker.replication.replica import PAUSE_SECONDS, Replica
from tandemmq.broker.replication.state import ReplicaSettings
from tandemmq.broker.replication.term import Term
from tandemmq.config.replication import sync_of
from tandemmq.journal.files import JournalFiles
from tandemmq.store.threads import Thread
from tests.support.crash.unwilling_disk import UnwillingDisk
from tests.support.replication.noted_link import NotedLink
from tests.support.replication.shared_directory import SharedDirectory
from tests.support.replication.source_journal import LENGTH, SET, SourceJournal, texts_of
from tests.support.virtual_time import HandClock

pytestmark = pytest.mark.promise("quorum-keeps-confirmed", "set-has-one-master")

T = 10.0
M = TypeVar("M")


class Clock(HandClock):
    def thread(self, target: Callable[[], object], name: str) -> Thread:
        """Do in the test the work of the replica's thread."""
        return super().thread((lambda: None) if name == "tandemmq-replica" else target, name)


class NoNetwork:
    """Links are the test's."""

    def start(self, listener: object) -> str:
        return "here:1"

    def dial(self, addresses: Mapping[str, str]) -> None: ...

    def end(self) -> None: ...


class Case:
    """A node of the set 5e5e... whose journal has "a" and "b" of epoch 4; its replica's thread is the test's."""

    def __init__(self, root: Path, *, is_empty: bool = False, sync: str = "quorum_disk") -> None:
        self.root, self.directory, self.clock = root, root / "own", Clock()
        self.directory.mkdir()
        self.sync = sync
        self.promise_disk = UnwillingDisk("nothing")
        self.promise_disk.is_unwilling = False
        promises = PromiseFile(str(self.directory), "n1")
        self.store = promises.promise.store
        promises.close()
        self.two, self.three = NotedLink(2), NotedLink(3)
        self.voters = (self.store, self.two.member.store, self.three.member.store)
        self.source = SourceJournal(root / "source", 4, voters=self.voters)
        self.middle = self.source.write("a")
        self.end = self.source.write("b")
        if not is_empty:
            shutil.copy(self.source.files.path(4), self.directory)
        self.is_open = False
        self.start()

    def start(self) -> None:
        self.make()
        self.replica.start()
        self.is_open = True

    def make(self) -> None:
        self.files = JournalFiles(str(self.directory))
        self.replica = Replica(
            self.files,
            partial(PromiseFile, str(self.directory), "n1", self.promise_disk),
            ReplicaSettings("set", "n1", 3, sync_of(self.sync), 1, T, 0),
            network=cast(Any, NoNetwork()),
            members=SharedDirectory().member(),
            threads=self.clock,
            chance=random.Random(1),
        )

    def end_process(self) -> None:
        if self.is_open:
            self.is_open = False
            self.replica.end(resigns=False)

    def restart(self) -> None:
        self.end_process()
        self.start()

    @property
    def promised(self) -> int:
        return self.replica.state.promise.epoch

    def say(self, link: NotedLink, *messages: Message) -> None:
        """Let the messages arrive, and do the work of the replica's thread."""
        for message in messages:
            self.replica.received(link, message)
        self.run()

    def run(self) -> None:
        self.replica._take(0)

    def stand(self) -> None:
        """Make the node a candidate: it wants to lead, and its time has come; the second node is there to vote."""
        self.two.is_ours = True
        self.replica.link_up(self.two)
        self.clock.now += 2 * T
        self.replica.try_acquire()
        self.run()
        self.replica._tick()

    def last(self, link: NotedLink, kind: type[M]) -> M:
        return [message for message in link.sent if isinstance(message, kind)][-1]

    def count(self, link: NotedLink, kind: type) -> int:
        return sum(isinstance(message, kind) for message in link.sent)

    def ask(self, link: NotedLink, epoch: int, position: Position, **changes: Any) -> PromiseAnswer:
        asked = {"id": 1, "set": SET, "epoch": epoch, "position": position, "founding": None, "milliseconds": 10_000}
        self.say(link, Promise(**(asked | changes)))
        return self.last(link, PromiseAnswer)

    def pre_vote(self, link: NotedLink, position: Position) -> PreVoteAnswer:
        self.say(link, PreVote(1, SET, 4, position, 1))
        return self.last(link, PreVoteAnswer)

    @property
    def here(self) -> Position:
        return Position(4, *self.end)

    def begin(self, link: NotedLink, epoch: int, common: tuple[int, int], **changes: Any) -> None:
        said = {"files": (4, epoch), "needed": (4,), "lacking": (), "end": common, "final": (0, 0)} | changes
        said.setdefault("wants_disk", True)
        if "follow" not in said:
            said["follow"] = self.seek()
        self.say(link, Begin(epoch=epoch, set=SET, common=common, **said))

    def seek(self) -> int:
        """Let the node look for the master; return the number of its FOLLOW."""
        follower = self.replica._follower
        if follower.master is None:
            follower.seek_soon()
            follower.seek()
        return follower._asks

    def later(self, epoch: int, common: tuple[int, int]) -> SourceJournal:
        """A master of that epoch, which writes "x"."""
        made = SourceJournal(self.root / f"epoch-{epoch}", epoch, former=self.source, common=common, voters=self.voters)
        made.write("x")
        return made

    def stream(self, link: NotedLink, source: SourceJournal, epoch: int) -> None:
        self.say(link, *(Bytes(epoch, file, offset, end, LENGTH, data) for file, offset, data, end in source.batches))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Case]]:
    made: list[Case] = []

    def case(**options: Any) -> Case:
        made.append(Case(tmp_path, **options))
        return made[-1]

    yield case
    for each in made:
        each.end_process()


@pytest.fixture
def case(make: Callable[..., Case]) -> Case:
    return make()


# ---- promises


def test_a_promise_is_on_the_disk_before_its_answer(case: Case) -> None:
    answer = case.ask(case.two, 7, case.here)
    assert (answer.granted, answer.promised) == (True, 7)
    case.restart()
    assert case.promised == 7
    assert case.replica.state.promise.candidate == case.two.member.store
    assert not case.ask(case.three, 7, case.here).granted
    assert case.ask(case.two, 7, case.here).granted, "once more"


def test_received_bytes_count_before_their_sync(make: Callable[..., Case]) -> None:
    case = make(sync="quorum_mem")
    later = case.later(5, case.end)
    case.begin(case.two, 5, case.end, files=(4, 5), wants_disk=False)
    case.stream(case.two, later, 5)
    assert case.last(case.two, Have).on == "memory"
    case.clock.now += 1.1 * T
    assert not case.ask(case.three, 7, case.here).granted
    assert case.ask(case.three, 7, Position(5, *later.place)).granted


def test_after_a_promise_nothing_of_an_older_epoch_is_taken_or_answered(case: Case) -> None:
    later = case.later(5, case.end)
    case.begin(case.two, 5, case.end)
    case.say(case.two, Alive(5, 1, 10_000))
    assert case.last(case.two, AliveAnswer) == AliveAnswer(5, 1)
    case.clock.now += 1.1 * T
    haves = case.count(case.two, Have)
    assert case.ask(case.three, 7, Position(5, 9, 9)).granted
    case.say(case.two, Alive(5, 2, 10_000))
    case.stream(case.two, later, 5)
    assert case.count(case.two, AliveAnswer) == 1
    assert case.count(case.two, Have) == haves
    assert texts_of(case.files) == ["a", "b"]


def test_a_granted_candidate_is_answered_before_its_epoch_begins(case: Case) -> None:
    """The candidate may read for long; it is no longer answered once a later epoch is promised, also by this node to
    itself."""
    assert case.ask(case.two, 7, case.here).granted
    case.say(case.two, Alive(7, 1, 10_000))
    case.say(case.three, Alive(7, 1, 10_000))
    assert case.last(case.two, AliveAnswer) == AliveAnswer(7, 1)
    assert case.count(case.three, AliveAnswer) == 0
    case.replica.state.promise_epoch(8, case.store)
    case.say(case.two, Alive(7, 2, 10_000))
    assert case.count(case.two, AliveAnswer) == 1


def test_a_start_that_finds_no_room_is_tried_again(case: Case) -> None:
    # proves: who-found-no-room-reads-again
    case.end_process()
    case.make()
    case.replica.open()
    case.promise_disk.is_unwilling = True
    for _ in range(2):
        with pytest.raises(OSError, match="accepted no byte"):
            case.replica.start()
        assert not case.replica.is_started
    case.promise_disk.is_unwilling = False
    case.replica.start()
    case.is_open = True
    case.replica.state.promise_epoch(9, None)
    assert case.promised == 9


def test_a_node_that_answered_promises_nothing_until_the_lease_is_over(case: Case) -> None:
    case.begin(case.two, 5, case.end)
    case.clock.now += 5
    case.say(case.two, Alive(5, 1, 10_000))
    case.clock.now += T - 0.1
    assert case.ask(case.three, 7, case.here).reason == "a master leads"
    assert case.pre_vote(case.three, case.here).reason == "a master leads"
    assert case.promised == 5
    case.clock.now += 0.2
    assert case.pre_vote(case.three, case.here).yes
    assert case.ask(case.three, 7, case.here).granted


@pytest.mark.parametrize("milliseconds", [5_000, 10_000, 20_000])
def test_a_promise_holds_as_long_as_its_candidate_may_lead(case: Case, milliseconds: int) -> None:
    """The longer time-out of the two nodes counts, also after the epoch has begun."""
    assert case.ask(case.two, 7, case.here, milliseconds=milliseconds).granted
    case.begin(case.two, 7, case.end)
    case.clock.now += max(T, milliseconds / 1000) - 0.1
    assert not case.ask(case.three, 8, case.here).granted
    case.clock.now += 0.2
    assert case.ask(case.three, 8, case.here).granted


def test_only_whom_it_follows_is_answered(case: Case) -> None:
    case.say(case.three, Alive(5, 1, 10_000))
    case.begin(case.two, 5, case.end)
    case.say(case.three, Alive(5, 1, 10_000))
    case.say(case.two, Alive(4, 1, 10_000))
    assert case.count(case.two, AliveAnswer) == case.count(case.three, AliveAnswer) == 0


def test_the_lease_of_a_former_life_is_kept_by_the_next(case: Case) -> None:
    case.begin(case.two, 5, case.end)
    case.say(case.two, Alive(5, 1, 10_000))
    case.restart()
    case.clock.now += T - 0.1
    assert not case.ask(case.three, 7, case.here).granted
    assert case.promised == 5
    case.clock.now += 0.2
    assert case.ask(case.three, 7, case.here).granted


@pytest.mark.parametrize(("by", "epoch", "frees"), [("two", 5, True), ("three", 5, False), ("two", 4, False)])
@pytest.mark.parametrize("is_candidate", [False, True])
def test_a_resignation_of_whom_it_follows_or_promised_to_frees_it(
    case: Case, by: str, epoch: int, frees: bool, is_candidate: bool
) -> None:
    if is_candidate:
        assert case.ask(case.two, 5, case.here).granted
    else:
        case.begin(case.two, 5, case.end)
    case.say(getattr(case, by), Resign(epoch, None))
    assert case.ask(case.three, 7, case.here).granted is frees


def test_a_node_that_is_not_whole_promises_nothing(case: Case) -> None:
    case.replica.state.set_whole(False)
    assert case.ask(case.two, 7, case.here).reason == "this node does not vote"
    case.stand()
    assert case.count(case.two, PreVote) == 0


def test_a_disk_that_stores_no_promise_prevents_answers(case: Case) -> None:
    case.promise_disk.is_unwilling = True
    case.say(case.two, Promise(1, SET, 7, case.here, None, 10_000))
    assert not case.two.sent


def test_the_lives_of_the_last_twenty_are_kept(case: Case) -> None:
    for number in range(10, 10 + 3 * LIVES_MAX):
        case.replica.link_up(NotedLink(number, life=5))
    case.run()
    assert len(case.replica.state.promise.lives) == LIVES_MAX
    assert not case.replica.state.problem


# ---- following


def test_a_master_below_the_promised_epoch_is_left(case: Case) -> None:
    assert case.ask(case.three, 7, case.here).granted
    case.begin(case.two, 6, case.middle)
    assert case.two.closed
    assert texts_of(case.files) == ["a", "b"]


def test_a_higher_epoch_is_promised_before_anything_is_cut(case: Case) -> None:
    case.begin(case.two, 6, case.middle)
    assert case.promised == 6
    assert case.replica.state.promise.candidate is None
    assert texts_of(case.files) == ["a"]
    case.restart()
    assert case.promised == 6


def test_received_bytes_are_written_synced_and_reported(case: Case) -> None:
    later = case.later(5, case.middle)
    case.begin(case.two, 5, case.middle)
    case.stream(case.two, later, 5)
    assert texts_of(case.files) == ["a", "x"]
    have = case.last(case.two, Have)
    assert (have.file, have.end, have.on) == (*later.place, "disk")


def test_bytes_of_anybody_else_are_not_taken(case: Case) -> None:
    later = case.later(5, case.end)
    case.begin(case.two, 5, case.end)
    case.stream(case.three, later, 5)
    case.stream(case.two, later, 6)
    assert texts_of(case.files) == ["a", "b"]


def test_bytes_behind_a_gap_end_the_link(case: Case) -> None:
    case.begin(case.two, 5, case.end)
    case.say(case.two, Bytes(5, 5, 100, 200, LENGTH, b"x" * 100))
    assert "after a gap" in case.two.closed
    assert not case.replica.state.problem
    case.begin(case.two, 5, case.end)
    assert case.replica.status()["master"]


def test_final_bytes_are_never_cut(case: Case) -> None:
    case.begin(case.two, 5, case.end, final=case.end)
    assert case.replica.final == case.end
    case.say(case.two, Resign(5, None))
    case.begin(case.three, 6, case.middle)
    assert case.replica.state.problem.startswith("FORK")
    assert texts_of(case.files) == ["a", "b"]
    assert not case.replica.status()["master"]


def test_final_is_no_further_than_the_own_disk(make: Callable[..., Case]) -> None:
    case = make(sync="quorum_mem")
    later = case.later(5, case.end)
    case.begin(case.two, 5, case.end, wants_disk=False)
    case.stream(case.two, later, 5)
    case.say(case.two, FinalUpTo(5, *later.place))
    assert case.replica.final == case.end
    case.clock.now += 1
    case.stream(case.two, later, 5)
    assert case.replica.final == later.place


def test_a_node_that_lacks_a_file_counts_again_when_it_has_it(case: Case) -> None:
    """The node counts again even if the master writes nothing more."""
    later = case.later(5, case.end)
    case.begin(case.two, 5, case.end)
    case.stream(case.two, later, 5)
    case.say(case.two, Resign(5, None))
    content = Path(case.files.path(4)).read_bytes()[: case.end[1]]
    Path(case.files.path(4)).unlink()
    haves = case.count(case.two, Have)
    case.begin(case.two, 6, later.place, files=(4, 5), lacking=(4,), end=later.place, final=later.place)
    assert not case.replica.state.promise.is_whole
    case.say(case.two, Bytes(6, 4, 0, 0, LENGTH, content[:50]))
    assert case.files.list() == [5]
    case.say(case.two, Bytes(6, 4, 50, case.end[1], LENGTH, content[50:]))
    assert case.count(case.two, Have) == haves
    case.say(case.two, Sealed(6, *case.end))
    assert case.last(case.two, Have).end == later.place[1]
    assert case.replica.state.promise.is_whole
    assert case.replica.final == later.place
    assert texts_of(case.files) == ["a", "b", "x"]


# proves: restored-disk-is-not-whole
def test_a_disk_that_has_less_than_it_acknowledged_promises_nothing_until_it_has_it_again(case: Case) -> None:
    """The node promises nothing after a start either; a master of a former version does not report it."""
    later = case.later(5, case.end)
    case.begin(case.two, 5, case.end, acknowledged=later.place, end=later.place)
    assert not case.replica.state.promise.is_whole
    case.restart()
    assert case.ask(case.three, 7, Position(9, 9, 9)).reason == "this node does not vote"
    case.begin(case.two, 5, case.end, end=later.place)
    case.stream(case.two, later, 5)
    assert case.replica.state.promise.is_whole
    case.restart()
    case.begin(case.two, 5, later.place, acknowledged=later.place, end=later.place)
    assert case.replica.state.promise.is_whole, "it has as much"


# proves: ahead-is-not-restored
def test_a_disk_ahead_of_a_restored_master_lacks_nothing(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.begin(case.two, 5, case.middle, acknowledged=case.end, end=case.middle)
    assert "it is in quarantine" in caplog.text
    assert "less than it had acknowledged" not in caplog.text


def test_a_damaged_copy_promises_nothing_until_it_has_caught_up(case: Case) -> None:
    with open(case.files.path(4), "r+b") as file:
        file.seek(case.middle[1] - 6)
        file.write(b"rot")
    case.restart()
    assert not case.replica.state.promise.is_whole
    begin = case.replica.state.position[1:]
    case.begin(case.two, 5, begin, end=case.end)
    assert not case.replica.state.promise.is_whole
    rest = Path(case.source.files.path(4)).read_bytes()[begin[1] : case.end[1]]
    case.say(case.two, Bytes(5, 4, begin[1], case.end[1], LENGTH, rest))
    assert case.replica.state.promise.is_whole
    assert texts_of(case.files) == ["a", "b"]


# ---- a set and its first journal


def migrated(case: Case) -> SourceJournal:
    old = SourceJournal(case.root / "old", 1, is_of_set=False)
    old.write("m")
    return SourceJournal(case.root / "set", 2, former=old, common=old.place, voters=case.voters)


def test_a_copy_that_has_no_header_yet_goes_on_after_a_start(make: Callable[..., Case]) -> None:
    """A learner of a set that was a single broker: the first files belong to no set by what they say."""
    case = make(is_empty=True)
    source = migrated(case)
    end = case_end = source.set.lineage[0][1:]
    content = Path(source.files.path(1)).read_bytes()[: end[1]]
    case.begin(case.two, 2, (0, 0), files=(1, 2), needed=(1,), end=source.place)
    case.say(case.two, Bytes(2, 1, 0, end[1], LENGTH, content))
    assert case.replica.state.position == Position(0, *case_end)
    case.restart()
    assert case.replica.hello().set == SET
    case.begin(case.two, 2, end, files=(1, 2), needed=(1,), end=source.place)
    assert not case.replica.state.problem
    case.stream(case.two, source, 2)
    assert case.replica.state.position == Position(2, *source.place)


def test_a_journal_of_its_own_is_not_taken_for_a_copy(make: Callable[..., Case]) -> None:
    case = make(is_empty=True)
    old = SourceJournal(case.root / "old", 1, is_of_set=False)
    old.write("mine")
    shutil.copy(old.files.path(1), case.directory)
    case.restart()
    case.begin(case.two, 2, (0, 0), files=(1, 2))
    assert "belongs to no set" in case.replica.state.problem
    assert texts_of(case.files) == ["mine"]


def test_an_empty_node_belongs_to_no_set_before_it_has_something(make: Callable[..., Case]) -> None:
    case = make(is_empty=True)
    case.begin(case.two, 2, (0, 0), files=(2,))
    assert case.replica.hello().set is None
    assert case.replica.state.position == BEFORE_ALL


def test_received_bytes_are_synced_before_a_later_epoch_is_promised(make: Callable[..., Case]) -> None:
    """The candidate counts on the position that this node has, also after a power loss."""
    case = make(sync="quorum_mem")
    later = case.later(5, case.end)
    case.begin(case.two, 5, case.end, files=(4, 5), wants_disk=False)
    case.stream(case.two, later, 5)
    copy = case.replica.state.copy
    assert copy.synced < later.place
    case.clock.now += 1.1 * T
    assert case.ask(case.three, 7, Position(5, *later.place)).granted
    assert copy.synced == later.place


def test_after_a_failure_of_the_disk_nobody_is_followed_for_a_while(case: Case) -> None:
    def fail() -> None:
        raise OSError(5, "the disk fails")

    later = case.later(5, case.end)
    case.begin(case.two, 5, case.end)
    case.stream(case.two, later, 5)
    assert case.replica.state.position == Position(5, *later.place)
    Path(case.files.path(5)).write_bytes(bytes(LENGTH))  # the disk never had what the kernel showed
    case.replica._guarded(fail)
    asked = case.seek()
    case.begin(case.two, 5, case.end, follow=asked)
    assert case.replica.followed_epoch is None
    case.clock.now += PAUSE_SECONDS
    case.replica._tick()
    assert case.replica.state.position == case.here, "it was read anew"
    case.begin(case.two, 5, case.end)
    assert case.replica.followed_epoch == 5


# ---- leading


def elected(case: Case) -> None:
    """Let the replica be elected by its own vote and the vote of the second node."""
    case.stand()
    asked = case.last(case.two, PreVote)
    case.say(case.two, PreVoteAnswer(asked.id, True, "", 4, case.here, 1))
    promise = case.last(case.two, Promise)
    case.say(case.two, PromiseAnswer(promise.id, promise.epoch, True, "", promise.epoch))
    assert case.replica.state.term is not None


def leading(case: Case) -> Term:
    """Return an elected master that has written the header of its first file; nothing is synced."""
    elected(case)
    term = case.replica.state.term
    assert term is not None
    term.begin(lambda: (4, term.epoch))
    case.files.prepare("n1", LENGTH)
    case.files.publish("n1", term.epoch)
    term.wrote(term.epoch, 0, b"header", 6)
    return term


def test_a_lease_begins_before_the_promises_were_asked_for(case: Case) -> None:
    """The promises may be under way for long, and are binding from the time when they were given."""
    case.stand()
    case.say(case.two, PreVoteAnswer(case.last(case.two, PreVote).id, True, "", 4, case.here, 1))
    asked_at = case.clock.now
    case.clock.now += T / 8
    promise = case.last(case.two, Promise)
    case.say(case.two, PromiseAnswer(promise.id, promise.epoch, True, "", promise.epoch))
    assert case.replica.state.term is not None
    assert case.replica.state.term.lease_from == asked_at


def test_a_released_master_resigns_when_its_store_writes_no_more(case: Case) -> None:
    term = leading(case)
    assert case.replica.try_acquire()
    case.replica.release()
    case.run()
    case.replica._tick()
    assert case.count(case.two, Resign) == 0
    term.end()
    case.replica._tick()
    assert case.last(case.two, Resign).epoch == term.epoch


def test_a_master_does_not_remove_itself(case: Case) -> None:
    term = leading(case)
    with pytest.raises(ChangeRefused, match="hand over first"):
        without_voter(term, case.store, case.store)
    with pytest.raises(ChangeRefused, match="alive and caught up"):
        without_voter(term, case.two.member.store, case.store)
    term.end()


def test_an_epoch_is_above_all_that_was_heard_of(case: Case) -> None:
    case.stand()
    asked = case.last(case.two, PreVote)
    case.say(case.two, PreVoteAnswer(asked.id - 1, True, "", 40, case.here, 1))
    assert case.count(case.two, Promise) == 0, "that answers another question"
    case.say(case.two, PreVoteAnswer(asked.id, True, "", 40, case.here, 1))
    assert case.last(case.two, Promise).epoch == 41
    assert case.promised == 41


def test_followers_come_when_the_header_is_written(case: Case) -> None:
    """Before the header it is not known where the epoch begins, and earlier bytes would be omitted."""
    elected(case)
    term = case.replica.state.term
    assert term is not None
    follow = Follow(1, term.epoch, SET, ((4, *case.middle),), (4,))
    case.say(case.three, follow)
    assert case.last(case.three, Alive).epoch == term.epoch, "it lives, and who granted it waits"
    term.begin(lambda: (4, term.epoch))
    case.say(case.three, follow)
    assert case.count(case.three, Begin) == 0
    case.files.prepare("n1", LENGTH)
    case.files.publish("n1", term.epoch)
    term.wrote(term.epoch, 0, b"header", 6)
    case.say(case.three, follow)
    begin = case.last(case.three, Begin)
    assert (begin.common, begin.end) == (case.middle, (term.epoch, 6))
    term.end()


def test_an_answer_to_what_was_here_before_is_not_taken(case: Case) -> None:
    """A FOLLOW may be long under way: what was acknowledged since would be cut off."""
    first = case.seek()
    source = case.later(5, case.end)
    case.begin(case.two, 5, case.end)
    case.stream(case.two, source, 5)
    grown = case.replica.state.position
    assert grown.epoch == 5
    case.replica.link_down(case.two, "it broke")
    case.run()
    latest = case.seek()
    case.begin(case.three, 5, case.end, follow=first)
    assert case.replica.state.position == grown
    assert case.replica.followed_epoch is None
    case.begin(case.three, 5, grown[1:], follow=latest)
    assert case.replica.followed_epoch == 5


def test_an_answer_is_not_taken_once_the_standby_removed_a_file(case: Case) -> None:
    given_up = Path(case.files.path(3))
    given_up.touch()
    asked = case.seek()
    given_up.unlink()
    case.begin(case.two, 5, case.end, follow=asked)
    assert case.replica.followed_epoch is None
    case.begin(case.two, 5, case.end)
    assert case.replica.followed_epoch == 5


def test_a_journal_of_no_set_has_nothing_in_common(case: Case) -> None:
    term = leading(case)
    case.say(case.three, Follow(1, 0, None, ((4, *case.middle),), (4,)))
    assert case.last(case.three, Begin).common == (0, 0)
    term.end()


def test_haves_of_another_epoch_do_not_count(case: Case) -> None:
    case.say(case.three, Have(4, 4, 6, "disk", 0))  # no master here
    term = leading(case)
    term.synced(term.epoch, 6)
    case.say(case.three, Follow(1, term.epoch, SET, ((4, *case.end),), (4,)))
    case.say(case.three, Have(term.epoch - 1, term.epoch, 6, "disk", 0))
    assert term.marks.final == (0, 0)
    case.say(case.three, Have(term.epoch, term.epoch, 6, "disk", 0))
    assert term.marks.final == (term.epoch, 6)
    term.end()


def test_a_master_whose_lease_is_over_confirms_nothing_once_it_promised(case: Case) -> None:
    elected(case)
    term = case.replica.state.term
    assert term is not None
    assert not case.ask(case.three, 90, case.here).granted, "its lease holds"
    assert not term.is_over
    case.clock.now += T
    assert case.ask(case.three, 90, case.here).granted
    assert term.is_over


def test_batches_written_until_a_master_is_deposed_count_at_its_promise(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage thread writes one more batch while the promise is thought over."""
    term = leading(case)
    case.clock.now += T
    as_far = case.replica.state.position
    depose = term.depose

    def depose_late() -> None:
        monkeypatch.undo()
        term.wrote(term.epoch, 6, b"late", 12)
        depose()

    monkeypatch.setattr(term, "depose", depose_late)
    assert "behind" in case.ask(case.three, 90, as_far).reason
    assert case.promised == term.epoch
    term.end()


def test_a_candidate_that_promises_to_another_releases_its_own_promises(case: Case) -> None:
    case.stand()
    case.say(case.two, PreVoteAnswer(case.last(case.two, PreVote).id, True, "", 4, case.here, 1))
    epoch = case.last(case.two, Promise).epoch
    assert case.ask(case.three, epoch + 1, case.here).granted
    assert case.last(case.two, Resign) == Resign(epoch, None)
    case.say(case.two, PromiseAnswer(case.last(case.two, Promise).id, epoch, True, "", epoch))
    assert case.replica.state.term is None
