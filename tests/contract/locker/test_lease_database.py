"""The rules of a lease in a row, with a database and clocks that a test drives by hand."""

# proves: lease, proof-grows-old

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tandemmq.locker.contract import Holder, LockRefused, LockRequest, LockSettings, LockSettingsError, LockUnavailable
from tandemmq.locker.leased import MARGIN, NAMESAKE_RENEWALS
from tandemmq.locker.options import Options
from tandemmq.locker.sql.lease_database import (
    SLACK,
    LeaseDatabaseLocker,
    LeaseRow,
    LeaseSettings,
    Signature,
    holder_in,
    read_signature,
)
from tests.support.locker.manual_clock import ManualClock

LEASE = 2.0
HOUR_MS = 3_600_000


@dataclass
class Row:
    """The database: one row and a clock that can be set, which else goes with the brokers'."""

    clock: ManualClock
    name: str | None = None
    ends_ms: int | None = None
    set_by_ms: int = 1_700_000_000_000
    failures: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    closed: int = 0

    @property
    def now_ms(self) -> int:
        return self.set_by_ms + round(self.clock.now() * 1000)


class ManualTable:
    """A LeaseTable on a Row. Each of `row.failures` is met once: "lost" before the verb happens, "unheard" after."""

    where = "the row of the test"

    def __init__(self, row: Row) -> None:
        self.row = row

    def _happens(self, verb: str, change: Callable[[], bool]) -> bool:
        row = self.row
        row.asked.append(verb)
        failure = row.failures.pop(0) if row.failures else ""
        if failure == "lost":
            raise LockUnavailable(f"{self.where}: no connection")
        done = change()
        if failure == "unheard":
            raise LockUnavailable(f"{self.where}: no answer")
        return done

    def _write(self, name: str | None, ends_ms: int) -> bool:
        self.row.name, self.row.ends_ms = name, ends_ms
        return True

    def read(self) -> LeaseRow:
        row = self.row
        self._happens("read", lambda: True)
        return LeaseRow(row.name, row.ends_ms, row.now_ms)

    def obtain(self, name: str, lease_ms: int) -> bool:
        row = self.row
        return self._happens(
            "obtain",
            lambda: (row.ends_ms is None or row.ends_ms <= row.now_ms) and self._write(name, row.now_ms + lease_ms),
        )

    def renew(self, name: str, lease_ms: int, known_as: Sequence[str]) -> bool:
        row = self.row
        return self._happens(
            "renew",
            lambda: (
                row.name in known_as and (row.ends_ms or 0) > row.now_ms and self._write(name, row.now_ms + lease_ms)
            ),
        )

    def take_over(self, name: str, lease_ms: int, seen: LeaseRow) -> bool:
        row = self.row
        return self._happens(
            "take_over",
            lambda: (row.name, row.ends_ms) == (seen.name, seen.ends_ms) and self._write(name, row.now_ms + lease_ms),
        )

    def free(self, known_as: Sequence[str]) -> None:
        self._happens("free", lambda: self.row.name in known_as and self._write(None, 0))

    def close(self) -> None:
        self.row.closed += 1


@pytest.fixture
def row() -> Row:
    return Row(ManualClock())


@pytest.fixture
def broker(row: Row) -> Callable[..., LeaseDatabaseLocker]:
    def build(
        name: str, *, pid: int = 7, lease: float = LEASE, keep_alive: float = 0.5, diff: float = 0.0, wall: float = 0.0
    ) -> LeaseDatabaseLocker:
        request = LockRequest(
            "/nowhere",
            Holder(name, pid=pid, host=f"host-of-{name}"),
            LockSettings(lock_acquire_sleep_interval_seconds=lease, lock_keep_alive_period_seconds=keep_alive),
            clock=row.clock,
        )
        return LeaseDatabaseLocker(
            request, LeaseSettings(name, diff), lambda: ManualTable(row), wall_clock=lambda: wall
        )

    return build


Broker = Callable[..., LeaseDatabaseLocker]


# ---- clocks


def test_a_lease_ends_when_the_database_says_so(row: Row, broker: Broker) -> None:
    a, b = broker("a"), broker("b")
    assert a.try_acquire()
    row.clock.advance(LEASE - 0.001)
    assert not b.try_acquire()
    row.clock.advance(0.001)
    assert b.try_acquire()
    assert not a.keep_alive()


def test_a_proof_ends_before_the_lease_and_counts_from_before_the_call(row: Row, broker: Broker) -> None:
    a = broker("a")
    asked_at = row.clock.now()
    assert a.try_acquire()
    assert a.proof().known_at_seconds == asked_at
    assert a.proof().holds_at(asked_at + LEASE * (1 - MARGIN) - 0.01)
    assert not a.proof().holds_at(asked_at + LEASE * (1 - MARGIN) + 0.01)


def test_an_expired_lease_is_not_extended_though_nobody_took_it(row: Row, broker: Broker) -> None:
    a = broker("a")
    assert a.try_acquire()
    row.clock.advance(LEASE)
    assert not a.keep_alive()
    assert not a.try_acquire()
    a.release()
    assert a.try_acquire()


def test_a_database_clock_that_was_set_back_does_not_keep_a_dead_masters_lease(row: Row, broker: Broker) -> None:
    """The row stands for its lease and a part of it more: our clock may be slower than that of a holder who renews."""
    a, b = broker("a"), broker("b")
    assert a.try_acquire()
    row.set_by_ms -= HOUR_MS
    assert not b.try_acquire()
    row.clock.advance(LEASE * (1 + SLACK / 2))
    assert not b.try_acquire()
    assert a.proof().holds_at(row.clock.now()) is False
    row.clock.advance(LEASE * SLACK / 2)
    assert not b.try_acquire(), "just so long is not longer"
    row.clock.advance(0.001)
    assert b.try_acquire()
    assert b.keep_alive()
    assert not a.keep_alive()


def test_a_living_masters_lease_outlives_a_clock_that_was_set_back(row: Row, broker: Broker) -> None:
    a, b = broker("a"), broker("b")
    assert a.try_acquire()
    row.set_by_ms -= HOUR_MS
    for _ in range(20):
        row.clock.advance(0.5)
        assert a.keep_alive()
        assert not b.try_acquire()


def test_a_database_clock_that_is_set_forward_lets_a_standby_in_and_the_master_knows(row: Row, broker: Broker) -> None:
    a, b = broker("a"), broker("b")
    assert a.try_acquire()
    row.set_by_ms += HOUR_MS
    assert b.try_acquire()
    assert not a.keep_alive()


def test_a_standby_with_another_lease_waits_for_the_holders(row: Row, broker: Broker) -> None:
    a, b = broker("a", lease=60.0), broker("b", lease=1.0)
    assert a.try_acquire()
    row.set_by_ms -= HOUR_MS
    assert not b.try_acquire()
    row.clock.advance(60.0)
    assert not b.try_acquire()
    row.clock.advance(60.0 * SLACK + 0.001)
    assert b.try_acquire()


def test_of_activemqs_leases_only_the_database_knows_the_end(row: Row, broker: Broker) -> None:
    b = broker("b")
    row.name, row.ends_ms = "amq", row.now_ms + HOUR_MS
    assert not b.try_acquire()
    assert b.holder() == Holder("amq")
    row.clock.advance(HOUR_MS / 1000 - 1)
    assert not b.try_acquire()
    row.clock.advance(1)
    assert b.try_acquire()


def test_clocks_that_differ_are_named_once(row: Row, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    now = row.now_ms / 1000
    for diff, wall, warned in ((0.0, 0.0, 0), (1.5, now + 1.4, 0), (1.5, now + 1.6, 1), (1.5, now - 1.6, 1)):
        caplog.clear()
        a = broker(f"a{wall}", diff=diff, wall=wall)
        for _ in range(2):
            a.try_acquire()
            a.release()
        assert len(caplog.messages) == warned
    assert "2023-11-14T22:30:00.000+00:00" in caplog.messages[0]
    assert "1.600 s apart" in caplog.messages[0]


# ---- polls


def test_a_standby_polls_just_when_the_lease_ends(row: Row, broker: Broker) -> None:
    a, b = broker("a"), broker("b")
    assert b.poll_seconds == pytest.approx(0.2)
    assert a.try_acquire()
    assert not b.try_acquire()
    assert b.poll_seconds == pytest.approx(0.2)
    row.clock.advance(LEASE - 0.05)
    assert not b.try_acquire()
    assert b.poll_seconds == pytest.approx(0.05)
    row.failures = ["lost"]
    with pytest.raises(LockUnavailable):
        b.try_acquire()
    assert b.poll_seconds == pytest.approx(0.2)


def test_a_waiting_standby_writes_nothing(row: Row, broker: Broker) -> None:
    a, b = broker("a"), broker("b")
    assert a.try_acquire()
    row.asked.clear()
    for _ in range(5):
        row.clock.advance(0.1)
        assert not b.try_acquire()
    assert set(row.asked) == {"read"}


# ---- answers that were lost


@pytest.mark.parametrize("failure", ["lost", "unheard"])
def test_a_lease_whose_granting_was_not_heard_is_ours_at_the_next_poll(row: Row, broker: Broker, failure: str) -> None:
    a = broker("a")
    row.failures = ["", failure]  # the reading, then the obtaining
    with pytest.raises(LockUnavailable):
        a.try_acquire()
    assert a.proof().holds_at(row.clock.now()) is False
    assert a.try_acquire()
    assert a.keep_alive()


@pytest.mark.parametrize("failure", ["lost", "unheard"])
def test_an_extension_that_was_not_heard_is_made_again(row: Row, broker: Broker, failure: str) -> None:
    a = broker("a")
    assert a.try_acquire()
    proof = a.proof()
    row.clock.advance(0.5)
    row.failures = [failure]
    with pytest.raises(LockUnavailable):
        a.keep_alive()
    assert a.proof() == proof
    assert a.keep_alive()


@pytest.mark.parametrize("failure", ["lost", "unheard"])
def test_an_announcement_that_was_not_heard_does_not_lose_the_lease(row: Row, broker: Broker, failure: str) -> None:
    a = broker("a")
    assert a.try_acquire()
    row.failures = [failure]
    with pytest.raises(LockUnavailable):
        a.announce(3)
    assert a.keep_alive()
    a.announce(4, "http://a:1")
    holder = broker("b").holder()
    assert holder is not None
    assert (holder.epoch, holder.admin) == (4, "http://a:1")


def test_release_is_tried_again_over_a_new_connection(row: Row, broker: Broker) -> None:
    a, b = broker("a"), broker("b")
    assert a.try_acquire()
    row.failures = ["lost"]
    a.release()
    assert b.try_acquire()


def test_release_does_not_try_for_ever(row: Row, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    a = broker("a")
    assert a.try_acquire()
    row.failures = ["lost"] * 9
    a.release()
    assert len(row.failures) == 7
    assert "is not released, and will expire" in caplog.text


def test_release_frees_a_lease_whose_granting_was_not_heard(row: Row, broker: Broker) -> None:
    a, b = broker("a"), broker("b")
    row.failures = ["", "unheard"]
    with pytest.raises(LockUnavailable):
        a.try_acquire()
    a.release()
    assert b.try_acquire()


# ---- names


def test_a_second_broker_with_the_same_name_is_refused_and_told_where_the_first_is(row: Row, broker: Broker) -> None:
    first, second = broker("same", pid=4711), broker("same", pid=4712)
    assert first.try_acquire()
    for _ in range(NAMESAKE_RENEWALS + 1):
        assert not second.try_acquire()
        row.clock.advance(0.5)
        assert first.keep_alive()
    with pytest.raises(LockRefused, match=r"same \(pid 4711, on host-of-same\).*locker\.lease_holder_id"):
        second.try_acquire()
    assert first.keep_alive()
    assert not second.keep_alive()


def test_a_namesake_does_not_extend_the_others_lease(row: Row, broker: Broker) -> None:
    first, second = broker("same"), broker("same")
    assert first.try_acquire()
    row.clock.advance(LEASE)
    assert second.try_acquire()
    assert not first.keep_alive()
    first.release()
    assert second.keep_alive()


def test_a_broker_that_was_killed_waits_its_own_lease_out(row: Row, broker: Broker) -> None:
    assert broker("same", pid=1).try_acquire()
    again = broker("same", pid=2)
    row.clock.advance(LEASE / 2)
    assert not again.try_acquire()
    row.clock.advance(LEASE / 2)
    assert again.try_acquire()
    assert again.keep_alive()


def test_the_last_word_of_a_former_life_is_no_namesake(row: Row, broker: Broker) -> None:
    former, again = broker("same"), broker("same")
    assert former.try_acquire()
    assert not again.try_acquire()
    row.clock.advance(0.1)
    assert former.keep_alive()
    for _ in range(5):
        row.clock.advance(0.1)
        assert not again.try_acquire()


def test_a_silent_database_does_not_end_the_start_of_a_broker_that_was_killed(row: Row, broker: Broker) -> None:
    assert broker("same", pid=1).try_acquire()
    again = broker("same", pid=2)

    class Failing(ManualClock):
        """After each wait the next request does not arrive, until the lease has expired."""

        def wait(self, stop: object, seconds: float) -> bool:
            row.clock.advance(seconds)
            row.failures = ["lost"] if row.clock.now() < 1_000 + LEASE else []
            return False

    again.clock = Failing()
    assert again.acquire(threading.Event())


def test_an_activemq_of_our_name_is_not_us(row: Row, broker: Broker) -> None:
    a = broker("a")
    row.name, row.ends_ms = "a", row.now_ms + 1_000
    assert not a.try_acquire()
    assert not a.keep_alive()


def test_what_stands_in_the_row_reads_back() -> None:
    full = Signature(
        Holder("a.b-c_d", 12, 34, "host.example", "http://h:8161", 1_700_000_000_000), "0123456789ab", 2_000
    )
    bare = Signature(Holder("a"), "0123456789ab", 1)
    for signature in (full, bare):
        assert read_signature(signature.text) == signature


@pytest.mark.parametrize(
    "text", ["", "a", "an ActiveMQ broker", "a|b", "a|1|n|2|3|4|h|u|x", "a|one|n|2|3|4|h|u", "a||n||||h|"]
)
def test_what_others_write_is_not_taken_for_ours(text: str) -> None:
    assert read_signature(text) is None
    assert holder_in(LeaseRow(text, 2, 1)) == Holder(text or "a broker of unknown name")


def test_a_signature_fits_into_activemqs_column() -> None:
    long = Signature(Holder("n" * 100, 10**9, 10**7, "h" * 64, "http://" + "a" * 300, 10**13), "0" * 12, 10**6)
    assert len(long.text) <= 250
    read = read_signature(long.text)
    assert read is not None
    assert (read.holder.name, read.holder.epoch, read.holder.host, read.holder.admin) == (
        "n" * 100,
        10**9,
        "h" * 64,
        None,
    )
    longer = Signature(Holder("n" * 100, 10**9, 10**7, "h" * 300, None, 10**13), "0" * 12, 10**6)
    assert len(longer.text) == 250
    assert read_signature(longer.text) is not None


# ---- settings


@pytest.mark.parametrize(
    ("lease", "keep_alive", "expected"),
    [(2.0, 0.5, None), (0.5, 0.5, "not longer than"), (0.4, 0.5, "not longer than"), (2.0, 0.0, "is 0")],
)
def test_a_lease_that_cannot_be_kept_is_called_unsafe(
    broker: Broker, lease: float, keep_alive: float, expected: str | None
) -> None:
    unsafe = broker("a", lease=lease, keep_alive=keep_alive).unsafe
    assert unsafe is None if expected is None else expected in str(unsafe)


@pytest.mark.parametrize("holder_id", ["a b", "a|b", "ä", "x" * 101])
def test_a_holder_id_that_cannot_stand_in_the_row_is_refused(holder_id: str) -> None:
    with pytest.raises(LockSettingsError, match="lease_holder_id"):
        LeaseSettings.read(Options({"lease_holder_id": holder_id}), "a")


def test_the_holder_id_is_the_brokers_name_unless_it_is_set() -> None:
    assert LeaseSettings.read(Options({}), "a").lease_holder_id == "a"
    text = Options({"lease_holder_id": "b", "max_allowable_diff_from_db_time": 1_500})
    assert LeaseSettings.read(text, "a") == LeaseSettings("b", 1.5)
