"""Contract on which a store relies, whatever decides that its epoch counts: a shared volume, or the quorum of a set.

A kind takes part by a ``Cluster``: a function that makes one from an empty directory stands in ``KINDS``.
"""

# proves: an-epoch-has-one-writer, authority-begins-before-header, end-marker-where-it-may-be, promotion
# proves: promotion-asks-the-authority, promotion-is-final, promotions-end-marker-where-it-may-be
# proves: followers-learn-the-end, epoch-above-every-file

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Never, cast

import pytest

from tandemmq.broker.replication.member import SetAuthority
from tandemmq.broker.replication.replica import Replica
from tandemmq.disk import Disk
from tandemmq.journal.errors import Deposed, FenceTaken, JournalFailed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import END_RECORD_SIZE
from tandemmq.journal.scan import scan
from tandemmq.store.authority import SHARED_VOLUME, Authority
from tandemmq.store.damage.report import decode_next
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.marks import encode_clock
from tandemmq.store.standby import Standby
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import read_headers
from tandemmq.store.writer.journal_end import NoProof
from tests.support.replication.small_set import SmallSet
from tests.support.store.noted_authority import NotedAuthority
from tests.support.store.noting_disk import NotingDisk
from tests.support.store.store_harness import KIB, SMALL, Term
from tests.support.virtual_time import VirtualTime

pytestmark = [pytest.mark.fence, pytest.mark.promise("set-settles-as-a-volume")]

SETTINGS = replace(SMALL, journal_max_file_length=16 * KIB)
BODY = b"x" * KIB


class Cluster:
    """Brokers that may be master of one store, by number: 0, 1, 2."""

    def node(self, number: int) -> tuple[str, Authority]:
        """The directory of a broker, which it may share with the others, and the authority of a new life of it."""
        raise NotImplementedError

    def lead(self, authority: Authority) -> None:
        """Win the election with this node: its promotion comes next."""

    def wait_until_told(self, master: Authority, follower: Authority) -> None:
        """Wait until the follower knows the final position of the master."""

    def close(self) -> None: ...


class OneVolume(Cluster):
    """All share a directory, and the fence decides."""

    def __init__(self, root: Path, virtual: VirtualTime) -> None:
        self._directory = str(root)

    def node(self, number: int) -> tuple[str, Authority]:
        return self._directory, SHARED_VOLUME


class RealSet(Cluster):
    """Each has its own directory, and replicas elect; what lies between them is in memory."""

    def __init__(self, root: Path, virtual: VirtualTime) -> None:
        self._set = SmallSet(root, left_out=("n0",), threads=virtual.threads, system_disk=virtual.disk)
        self._set.add("n0", weight=2)  # it founds the set: all stories begin with it
        self._set.nodes.sort(key=lambda node: node.name)
        self._replicas: dict[Authority, Replica] = {}

    def node(self, number: int) -> tuple[str, Authority]:
        node = self._set.nodes[number]
        authority = SetAuthority(node.replica)
        self._replicas[authority] = node.replica
        return str(node.directory), authority

    def lead(self, authority: Authority) -> None:
        replica = self._replicas[authority]
        replica.release()
        for node in self._set.nodes:
            if node.replica is not replica and node.replica.state.term is not None:
                self._set.switch.isolate(node.name)
                break
        else:
            node = None
        others = [each for each in self._set.nodes if each.replica is not replica and each is not node]

        def is_elected() -> bool:
            ahead = next((each for each in others if each.replica.state.position > replica.state.position), None)
            if ahead is None:
                return replica.try_acquire()
            # No node votes for a node that is behind, and each may still write earlier bytes: check each time.
            replica.release()
            if self._set.try_elect(ahead):
                self._set.until(
                    lambda: replica.state.position == ahead.replica.state.position, "it has all that the other one has"
                )
                ahead.leave()
            return False

        self._set.until(is_elected, "it is elected")
        self._set.switch.heal()

    def wait_until_told(self, master: Authority, follower: Authority) -> None:
        term = self._replicas[master].state.term
        assert term is not None
        self._set.until(lambda: follower.horizon == term.marks.final == term.marks.written, "it is final, and told")

    def close(self) -> None:
        self._set.close()


KINDS: dict[str, Callable[[Path, VirtualTime], Cluster]] = {"shared volume": OneVolume, "set of replicas": RealSet}


class Broker:
    """One life of a broker, whose authority and disk are recorded."""

    def __init__(self, cluster: Cluster, number: int, virtual: VirtualTime) -> None:
        self.disk = NotingDisk(virtual.disk)
        self._cluster, self._threads = cluster, virtual.threads
        self.directory, self._authority = cluster.node(number)
        self.authority = NotedAuthority(self._authority, self.disk.steps)
        self.files = JournalFiles(self.directory)
        self.standby = Standby(
            self.directory,
            f"{self.directory}/index",
            "abc"[number],
            SETTINGS,
            authority=self.authority,
            disk=cast(Disk, self.disk),
            threads=virtual.threads,
        )

    def win(self) -> None:
        self._cluster.lead(self._authority)

    def rule(self) -> Term:
        self.win()
        return Term.of(self.standby, self._threads)


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def cluster(request: pytest.FixtureRequest, tmp_path: Path, virtual: VirtualTime) -> Iterator[Cluster]:
    made: Cluster = request.param(tmp_path, virtual)
    yield made
    virtual.run(made.close)
    for directory in {made.node(number)[0] for number in range(3)}:
        report = check(directory)
        assert report.is_clean, report.problems


BrokerOf = Callable[[int], Broker]


@pytest.fixture
def broker_of(cluster: Cluster, virtual: VirtualTime) -> BrokerOf:
    """A new life of the broker with this number."""
    return lambda number: Broker(cluster, number, virtual)


@pytest.fixture
def broker(broker_of: BrokerOf) -> Broker:
    return broker_of(0)


@pytest.fixture
def term(virtual: VirtualTime, broker: Broker) -> Iterator[Term]:
    """The first term, of ``broker``."""
    made: list[Term] = []
    virtual.run(lambda: made.append(broker.rule()))
    yield made[0]
    virtual.run(made[0].crash if made[0].lost else made[0].close)


def fill(term: Term) -> list[AddMessage]:
    """Forty messages in batches of five, which take three files."""
    return [add for _ in range(8) for add in term.add_durably(5, body=BODY)]


def fill_and_empty(term: Term) -> None:
    added = fill(term)
    owner = term.store.queue(added[0].message.destination)
    for add in added:
        term.remove(add, owner)
    term.wait_durable(2 * len(added))


def nobody_answers() -> Never:
    raise NoProof("nobody answers")


def behind(broker: Broker, file: int, end: int) -> list[int | None]:
    """The end markers behind the end of a file."""
    return [decode_next(payload) for batch in scan(broker.files, file, end) for _, payload in batch.records]


def test_what_was_confirmed_is_there_for_every_later_master(broker_of: BrokerOf) -> None:
    bodies = []
    for number in (0, 1, 2, 0):
        term = broker_of(number).rule()
        assert term.bodies() == bodies
        bodies += [add.message.body for add in term.add_durably(20, body=BODY)]
        term.crash()


def test_each_epoch_begins_in_a_file_behind_all_others(broker_of: BrokerOf) -> None:
    first_files: list[int] = []
    for number in (0, 1, 1, 2):
        broker = broker_of(number)
        before = max(broker.files.list(), default=0)
        term = broker.rule()
        first_files.append(broker.authority.written[0])
        assert first_files[-1] > before
        header = read_headers(broker.files).headers[first_files[-1]]
        assert header.epoch == term.store.epoch
        if header.set is not None:
            assert header.epoch == first_files[-1]
        term.add_durably(5)
        term.close()
    assert first_files == sorted(set(first_files))


def test_every_header_of_an_epoch_says_what_the_authority_says_of_the_set(broker: Broker, term: Term) -> None:
    fill(term)
    headers = read_headers(broker.files).headers
    assert len(headers) > 2
    assert all(header.set == broker.authority.set_header() for header in headers.values())


def test_a_new_file_is_begun_on_demand_and_its_header_is_final(broker: Broker, term: Term) -> None:
    term.add_durably(1)
    former = broker.authority.written[0]
    broker.authority.settled.clear()
    term.wait(term.store.rotate().done)
    # A checkpoint may have settled an earlier operation.
    assert broker.authority.settled[-1] == (*broker.authority.written, True)
    assert broker.authority.written[0] == former + 1
    assert read_headers(broker.files).headers[former + 1].set == broker.authority.set_header()
    term.add_durably(1)


def test_it_is_told_of_each_batch_before_the_sync_and_asked_after_the_fence_check(broker: Broker, term: Term) -> None:
    file = broker.authority.written[0]
    following = file + 1
    batch = [f"write {file}", f"told {file}", f"sync {file}", f"synced {file}", f"look for {following}"]
    steps = broker.disk.steps
    assert steps[steps.index(f"begin {file}") + 1 :][:6] == [*batch, f"final {file}"], "the header"
    steps.clear()
    term.add_durably(1)
    assert steps[steps.index(f"write {file}") :][:6] == [*batch, f"confirmed {file}"]


def test_a_promotion_asks_before_it_writes_its_header(broker: Broker, term: Term) -> None:
    steps = broker.disk.steps
    begun = steps.index(next(step for step in steps if step.startswith("begin")))
    assert "ask for the promotion" in steps[steps.index("ask for the first file") : begun]
    assert not [step for step in steps[:begun] if step.startswith("told")]


def test_what_it_was_told_makes_the_files_again(broker: Broker, term: Term) -> None:
    fill(term)
    term.close()
    copies: dict[int, bytearray] = {}
    for file, offset, data, end in broker.authority.told:
        copy = copies.setdefault(file, bytearray())
        assert len(copy) - END_RECORD_SIZE * bool(copy) == offset
        assert end == offset + len(data) - END_RECORD_SIZE
        copy[offset:] = data
    assert list(copies) == broker.files.list()
    for file, copy in copies.items():
        content = Path(broker.files.path(file)).read_bytes()
        assert content[: len(copy) - END_RECORD_SIZE] == copy[:-END_RECORD_SIZE]
    last = len(copies[max(copies)]) - END_RECORD_SIZE
    assert broker.authority.ends == read_headers(broker.files).ends
    assert broker.authority.written == (max(copies), last)


def test_a_file_is_sealed_before_the_next_one_is_told_of(broker: Broker, term: Term) -> None:
    file = broker.authority.written[0]
    fill(term)
    steps = [step for step in broker.disk.steps if step.startswith(("told", "sealed"))]
    sealed = steps.index(f"sealed {file}")
    assert set(steps[:sealed]) == {f"told {file}"}
    assert steps[sealed + 1] == f"told {file + 1}"


def test_end_markers_stand_behind_ends_only_where_they_may(broker: Broker, term: Term) -> None:
    fill(term)
    term.close()
    ends = read_headers(broker.files).ends
    assert ends
    for file, end in ends.items():
        assert behind(broker, file, end) == ([file + 1] if broker.authority.leaves_end_markers else [])


def test_it_knows_from_any_thread_which_files_are_needed(broker: Broker, term: Term) -> None:
    fill(term)
    assert broker.authority.files() == tuple(broker.files.list())


def test_a_file_that_was_given_up_is_not_needed_though_it_is_there(
    broker_of: BrokerOf, broker: Broker, term: Term
) -> None:
    fill_and_empty(term)
    first = broker.files.list()[0]
    content = Path(broker.files.path(first)).read_bytes()
    term.close()
    assert first not in broker.files.list()
    Path(broker.files.path(first)).write_bytes(content)
    later = broker_of(0)
    term = later.rule()
    assert first not in later.authority.files()


def test_a_checkpoint_and_a_removal_wait_until_all_is_final(broker: Broker, term: Term) -> None:
    fill_and_empty(term)
    settled = broker.authority.settled
    settled.clear()
    broker.disk.steps.clear()
    term.close()
    finals = [(file, end) for file, end, must_be_final in settled if must_be_final]
    assert finals[-1] == broker.authority.told[-1][::3], "what is said before files are removed"
    steps = broker.disk.steps
    removed = next(number for number, step in enumerate(steps) if step.startswith("remove"))
    assert [step for step in steps[:removed] if step.startswith(("told", "final"))][-1].startswith("final")


def test_a_promotion_of_many_files_tells_of_each_batch_and_has_each_final(broker_of: BrokerOf) -> None:
    broker = broker_of(0)
    broker.win()
    broker.standby.fence(lambda: True)
    broker.standby.read()
    batches = [[encode_clock(number)] * 300 for number in range(8)]
    broker.standby._promotion.begin(broker.standby.follower, records=batches).close()
    authority, told = broker.authority, broker.authority.told
    history = read_headers(broker.files)
    assert len(history.headers) > 2
    assert authority.ends == history.ends
    waited_for = [batch for batch in told if batch.offset or batch.file == told[0].file]  # not the rotations' headers
    assert authority.settled == [(batch.file, batch.end, True) for batch in waited_for]
    assert all(header.set == authority.set_header() for header in history.headers.values())
    for file, end in history.ends.items():
        assert behind(broker, file, end) == ([file + 1] if authority.leaves_end_markers else [])
    assert broker.disk.steps[-1] == "end"
    broker.standby.close()


def test_whoever_was_replaced_confirms_nothing(broker_of: BrokerOf) -> None:
    former, later = broker_of(0), broker_of(1)
    term = former.rule()
    term.add_durably(3)
    successor = later.rule()
    before = len(term.durable_operations)
    term.add()
    assert isinstance(term.wait_lost(), (Deposed, NoProof))
    assert len(term.durable_operations) == before
    term.crash()
    assert len(successor.bodies()) == 3
    successor.close()


def test_whoever_is_replaced_while_it_is_promoted_writes_no_header(broker_of: BrokerOf) -> None:
    broker_of(0).rule().close()
    late, other = broker_of(0), broker_of(1)
    late.win()
    late.standby.fence(lambda: True)
    late.standby.read()
    term = other.rule()
    term.add_durably(3)
    with pytest.raises((Deposed, FenceTaken)):
        late.standby.begin(
            has_proof=lambda: True,
            call_soon=lambda _: None,
            call_later=lambda _, function: None,
            on_lost=lambda _: None,
        )
    assert not late.authority.told
    late.standby.close()
    term.close()


def test_the_end_comes_when_the_file_is_closed_and_may_come_again(broker: Broker, term: Term) -> None:
    term.add_durably(1)
    assert "end" not in broker.disk.steps
    term.close()
    assert broker.disk.steps[-1] == "end"
    term.crash()
    assert [step for step in broker.disk.steps if step.startswith("write")][-1] in broker.disk.steps[:-2]
    assert broker.disk.steps[-2:] == ["end", "end"]


def test_a_promotion_that_comes_to_nothing_ends_what_it_began(broker_of: BrokerOf) -> None:
    broker = broker_of(0)

    broker.authority.on_settle = nobody_answers
    with pytest.raises(NoProof):
        broker.rule()
    assert broker.disk.steps[-1] == "end"
    broker.standby.close()
    broker_of(0).rule().close()


def test_a_batch_that_is_not_confirmed_is_reported_to_nobody(broker: Broker, term: Term) -> None:
    term.add_durably(2)

    broker.authority.on_settle = nobody_answers
    term.add()
    assert isinstance(term.wait_lost(), NoProof)
    assert len(term.durable_operations) == 2


def test_a_standby_reads_what_is_settled_and_a_promotion_the_rest(cluster: Cluster, broker_of: BrokerOf) -> None:
    master, follower = broker_of(0), broker_of(1)
    term = master.rule()
    for _ in range(4):
        term.add_durably(10, body=BODY)
        cluster.wait_until_told(master._authority, follower._authority)
        follower.standby.follow()
        position, horizon = follower.standby.state.position, follower.authority.horizon
        assert position is not None
        if horizon is None:
            assert position[:2] < master.authority.written
        else:
            assert position[:2] == horizon
    assert follower.standby.has_caught_up
    term.crash()
    assert len(follower.rule().bodies()) == 40


def test_a_failed_write_is_told_to_nobody(broker: Broker, term: Term) -> None:
    term.add_durably(1)
    told = len(broker.authority.told)

    def fail() -> None:
        raise OSError(5, "the disk is broken")

    broker.disk.on_write = fail
    term.add()
    assert isinstance(term.wait_lost(), JournalFailed)
    assert len(broker.authority.told) == told
