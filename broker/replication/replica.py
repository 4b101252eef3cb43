"""A node of a set: it votes, can be elected, follows and leads (docs/formats/replication.md).

One thread, the replica's, owns position, promise and incoming stream: it handles messages in their order. The network's
thread does the tasks that must not wait for a disk: it answers ALIVE, and notes answers and HAVEs for the term that
leads. The lock thread requests the mastership with ``try_acquire`` and releases it with ``release``.

    state       the node's state: promise, timer, journal, term  election   asks for votes, founds, gives votes
    peers       the other members, and links to them             follower   follows a master
    repair      writes damaged batches of the journal again      leader     leads; the lock thread takes and releases it
    status      reports for operators
"""

# proofs: replication-rules

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from queue import Empty
from typing import Any, Final

from tandemmq.broker.replication.copy import Forked
from tandemmq.broker.replication.directory import Directory
from tandemmq.broker.replication.election import Candidate, Voter
from tandemmq.broker.replication.follower import Follower
from tandemmq.broker.replication.leader import Leader
from tandemmq.broker.replication.messages import (
    Alive,
    AliveAnswer,
    Begin,
    Bytes,
    Fetch,
    FinalUpTo,
    Follow,
    Have,
    Message,
    NotLeading,
    Piece,
    PreVote,
    PreVoteAnswer,
    Promise,
    PromiseAnswer,
    Resign,
    Sealed,
    Skipped,
    Status,
    StatusAnswer,
)
from tandemmq.broker.replication.network import Link, Network
from tandemmq.broker.replication.peers import Known, Links, Twins
from tandemmq.broker.replication.promise import PromiseFile, PromiseLost
from tandemmq.broker.replication.quorum import NOWHERE, Place
from tandemmq.broker.replication.repair import MemberCopies, OwnCopy
from tandemmq.broker.replication.state import PROMISE_LOST, NodeState, NotStarted, ReplicaSettings
from tandemmq.broker.replication.status import StatusReport
from tandemmq.journal.files import JournalFiles
from tandemmq.store.maintenance.scrubber import Scrubber
from tandemmq.store.threads import Threads

log = logging.getLogger(__name__)

#: Part of T, the session time-out: the interval of ALIVE.
ALIVE: Final = 0.125
TICK_SECONDS: Final = 0.02
#: Interval at which the other members' statuses are requested.
STATUS_SECONDS: Final = 1.0
#: Pause after a failure of the disk.
PAUSE_SECONDS: Final = 1.0
#: Maximum number of messages that are handled before the bytes that came with them are synced.
BURST: Final = 256


class Replica:
    """A node of a set; it begins with ``start`` and ends with ``end``. ``files`` are the journal's, on this node's own
    volume; ``promises`` opens the promise file there.

    ``remember`` stores the known members, for commands that run after the end of this process.
    """

    def __init__(
        self,
        files: JournalFiles,
        promises: Callable[[], PromiseFile],
        settings: ReplicaSettings,
        *,
        network: Network[Any],
        members: Directory,
        threads: Threads,
        chance: random.Random | None = None,
        free_bytes: Callable[[], int] = lambda: 0,
        record: Callable[..., object] = lambda kind, **facts: None,
        remember: Callable[[Mapping[str, Any]], object] = lambda members: None,
    ) -> None:
        self.on_yield: Callable[[], object] = lambda: None  # requests a planned handover; any thread calls it
        self.settings = settings
        chance = chance or random.Random()
        self.state = state = NodeState(files, promises, settings, threads=threads, chance=chance, record=record)
        self._twins = twins = Twins(threads.monotonic)
        self._links = links = Links(state, network, members, twins)
        self._known = known = Known(threads.boottime)
        self._follower = follower = Follower(state, links, free_bytes)
        self._leader = leader = Leader(state, links, known, lambda: self.on_yield())
        self._copies = copies = MemberCopies(state, links, known)
        own = OwnCopy(state, follower, copies, self._act)
        self.scrubber = scrubber = Scrubber(
            lambda: (own,), rate=settings.scrub_rate, interval=settings.scrub_interval, threads=threads
        )
        self.candidate = candidate = Candidate(state, links, follower, leader)
        voter = Voter(state, follower, candidate)
        self._report = report = StatusReport(state, links, follower, leader, known, twins, scrubber)
        # Methods of the roles that other threads call.
        self.hello, self.knows, self.admits = links.hello, links.knows, links.admits
        self.try_acquire = leader.try_acquire
        self.propose, self.give_up_change = leader.propose, leader.give_up_change
        self.choose_successor = leader.choose_successor
        self.members, self.leader, self.others = links.entries, report.leader, report.others
        self.status = report.status
        self._remember = remember
        self._threads = threads
        self._now = threads.boottime
        self._status_at = float("-inf")
        self._paused_until = 0.0
        self.is_started = False
        self._is_ended = False
        self._end = threads.event()
        self._inbox = threads.inbox()
        self._thread = threads.thread(self._run, "tandemmq-replica")
        self._alive_thread = threads.thread(self._send_alive, "tandemmq-alive")
        self._handlers: Mapping[type, Callable[[Link, Any], object]] = {
            PreVote: voter.pre_vote,
            PreVoteAnswer: candidate.pre_vote_answered,
            Promise: voter.promise,
            PromiseAnswer: candidate.promise_answered,
            Follow: leader.follow,
            Begin: self._begin,
            NotLeading: lambda link, message: None,
            Bytes: follower.bytes_received,
            Sealed: follower.file_sealed,
            Skipped: follower.file_sealed,
            FinalUpTo: follower.final_received,
            Resign: voter.resigned,
            Fetch: copies.answer,
            Status: lambda link, message: link.send(StatusAnswer(self.status())),
            StatusAnswer: lambda link, message: known.note(link.member.store, message.status),
        }

    # ---- life

    def open(self) -> None:
        """Lock the directory of the store, and read the promise. A second call does nothing. Raises the errors of
        ``promises``."""
        self.state.open()

    def start(self) -> None:
        """Read the state, bind, appear in the directory, begin. A second call does nothing after success. Raises
        OSError: if the volume has no space, nothing has begun, and ``start`` may be called again."""
        if self.is_started:
            return
        self.state.open()
        self.state.start()  # first: a node that cannot write its promise answers no member
        if self._is_ended:
            return
        self._links.bind(self)
        self._links.watch(lambda: self._inbox.put(self._links.dial))
        self._thread.start()
        self._alive_thread.start()
        self.scrubber.start()
        self.is_started = True

    def end(self, *, resigns: bool = True) -> None:
        """End all threads; on return nothing runs. A master has called ``release`` before. ``resigns``: the master
        resigns."""
        self._is_ended = True
        if not self.is_started:
            return  # a call to the volume may be in progress: the end of the process closes the files
        self._copies.end()
        self.scrubber.end()  # before the thread that writes its repairs
        self._inbox.put(None)
        self._end.set()
        self._thread.join()
        self._alive_thread.join()
        self._remember(self._known.written(self.status()))
        self._leader.end(resigns=resigns)
        self._links.end()
        self.state.close()

    # ---- state; any thread

    def overview(self) -> Mapping[str, Any]:
        """Return the status of this node, and the known statuses of the others. Raises NotStarted."""
        if not self.is_started:
            raise NotStarted("this node waits for its volume: see its status")
        return self._report.overview()

    @property
    def final(self) -> Place:
        """Place up to which everything is final and on this node's disk."""
        return self._follower.final

    @property
    def has_ended_cleanly(self) -> bool:
        """Return whether the store ended the mastership cleanly; ``release`` comes next."""
        return self._leader.has_ended_cleanly

    @property
    def followed_epoch(self) -> int | None:
        """Epoch of the master that this node takes bytes from; None: it follows no master."""
        master = self._follower.master
        return None if master is None else master.epoch

    @property
    def may_be_candidate(self) -> bool:
        """Return whether this node would be elected if the others agreed: it votes, lacks nothing, and would take the
        mastership."""
        return self.candidate.may_be_candidate

    def has_link_to(self, store: str) -> bool:
        """Return whether this node's own link to the store is up."""
        return store in self._links.ours

    def release(self) -> None:
        """Stop leading. Followers are notified when the store no longer writes. The lock thread."""
        term = self._leader.release()
        if term is not None:
            self._inbox.put(lambda: self._leader.resign(term))

    # ---- the network's thread (network.Listener)

    def link_up(self, link: Link) -> None:
        self._twins.link_up(link)
        self._inbox.put(lambda: self._link_up(link))

    def link_down(self, link: Link, reason: str) -> None:
        self._twins.link_down(link)
        self._inbox.put(lambda: self._link_down(link, reason))

    def received(self, link: Link, message: Message) -> None:
        term = self.state.term
        if isinstance(message, Alive):
            if self.state.timer.answers(link, message):
                link.send(AliveAnswer(message.epoch, message.number))
        elif isinstance(message, AliveAnswer):
            if term is not None and message.epoch == term.epoch:
                term.alive_answered(link.member.store, message.number)
        elif isinstance(message, Have):
            if term is not None and message.epoch == term.epoch:  # prove: have-of-this-epoch
                term.have(link, message)
        elif isinstance(message, Piece):
            self._copies.add_piece(link, message)
        else:
            self._inbox.put((link, message))

    # ---- a thread that waits for no disk

    def _send_alive(self) -> None:
        while not self._end.wait(ALIVE * self.settings.timeout_seconds):
            self._leader.send_alive()

    # ---- the replica's thread

    def _run(self) -> None:
        while not self._is_ended:
            self._take(self._patience())
            self._guarded(self._tick)

    def _patience(self) -> float:
        """Return the seconds until ``_tick`` may have work that no item in the inbox announces."""
        state, now = self.state, self._now()
        if (
            state.term is not None
            or state.is_promise_lost
            or now < self._paused_until
            or state.copy.position[1:] != state.copy.synced
        ):
            return TICK_SECONDS
        due = min(self._status_at + STATUS_SECONDS, state.timer.over_at)
        if self.candidate.asks_until is not None:
            due = min(due, self.candidate.asks_until)
        elif self._follower.master is None:
            due = min(due, self._follower.seeks_at)
        return max(TICK_SECONDS, due - now)

    def _take(self, timeout: float) -> None:
        """Handle the messages that have arrived, or arrive within ``timeout``, and report the outcome to the master."""
        try:
            item = self._inbox.get(timeout=timeout)
            for _ in range(BURST):
                self._handle(item)
                item = self._inbox.get_nowait()
            self._handle(item)
        except Empty:
            pass
        self._guarded(self._follower.report_bytes)

    def _handle(self, item: Any) -> None:
        if item is None:
            return
        if callable(item):
            self._guarded(item)
            return
        link, message = item
        self._guarded(lambda: self._handlers[type(message)](link, message))

    def _act(self, work: Callable[[], bool]) -> bool:
        """Call ``work`` on the replica's thread, and return its result or raise its exception. For a thread that ends
        before the replica's."""
        done: Future[bool] = Future()

        def act() -> None:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        self._inbox.put(act)
        self._threads.wait([done])
        return done.result()

    def _guarded(self, work: Callable[[], object]) -> None:
        """Call ``work``. A failed disk ends the stream, never the thread."""
        state = self.state
        try:
            work()
        except OSError as error:
            log.error("copying the journal failed: %s", error)
            state.record("replica-failed", reason=str(error))
            self._paused_until = self._now() + PAUSE_SECONDS
            self._follower.disk_failed(f"the disk fails: {error}")
        except PromiseLost:
            if not state.problem:
                state.set_problem(PROMISE_LOST)
        except Forked as error:
            state.set_problem(f"FORK: {error}; nothing was changed, see docs/replication.md")
            self._follower.leave("forked")
        except Exception as error:  # an internal error: this node takes no part, and reports the error
            log.exception("the replica failed")
            state.set_problem(f"BUG: {error!r}")
            self._follower.leave("an internal error")

    def _tick(self) -> None:
        now, state = self._now(), self.state
        self._links.publish()
        if now - self._status_at >= STATUS_SECONDS:
            self._status_at = now
            self._report.measure_lags()
            self._links.tell(Status())
            self._follower.report_free_bytes()
            self._remember(self._known.written(self.status()))
        if state.is_promise_lost and now >= self._paused_until:
            self._paused_until = now + PAUSE_SECONDS
            state.open_promise_again()
            self._paused_until = 0.0
        if (term := state.term) is not None:
            if term.marks.synced > NOWHERE:
                state.end_founding()  # prove: founding-ends-for-the-founder
            self._leader.tick(term)
            return
        if now < self._paused_until:
            return
        if state.copy.is_forgotten:
            state.scan()
        if self._follower.master is not None and state.timer.is_over:
            self._follower.leave("it is silent")
        if self._follower.master is None and not self.candidate.is_asking:
            self._follower.seek()
        self.candidate.tick()

    def _link_up(self, link: Link) -> None:
        promise = self.state.promise.saw(link.member.store, link.member.life)
        # Before this life answers any message, because other members know this life from now on.
        try:
            self.state.note(replace(promise, is_met=True))  # prove: a-life-is-met-before-it-answers
        except (OSError, PromiseLost):
            link.close("its life could not be noted")  # the link is dialed again; on this one nothing is answered
            raise
        if link.is_ours:
            self._follower.seek_soon()
        self._links.up(link)

    def _link_down(self, link: Link, reason: str) -> None:
        self._links.down(link)
        master = self._follower.master
        if master is not None and master.link is link:
            self._follower.leave(reason)
        self._leader.link_down(link)

    def _begin(self, link: Link, message: Begin) -> None:
        is_free = self.state.term is None and self._follower.master is None and not self.candidate.is_asking
        # prove: follows-none-while-paused " and self._now() >= self._paused_until"
        if is_free and self._now() >= self._paused_until:
            self._follower.begin(link, message)
