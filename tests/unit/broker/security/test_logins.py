"""Logins that are accepted, logins that are refused, and the cost of guessing."""

# proves: login-lanes, who-failed-waits-with-others, who-logged-in-has-a-lane, a-name-pushes-out-its-own
# proves: what-others-wrote-stays, others-there-hold-back-no-known-login, who-was-given-up-waits-with-others
# proves: all-of-a-name-have-a-chance, abandoned-check-is-dropped, the-directory-has-threads
# proves: a-changed-user-is-tried-again, external-is-never-anonymous

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tandemmq.broker.core.access import Credentials
from tandemmq.broker.core.commands import ClientError, ErrorKind, Undecided
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security import known_logins, login_lanes, login_throttle, logins, users
from tandemmq.broker.security.file_changes import Watched
from tandemmq.broker.security.known_logins import FILE_NAME, KnownLogins
from tandemmq.broker.security.login_lanes import TRIES_OF_ONE_MAX, Lane, LaneQueue, Try
from tandemmq.broker.security.login_throttle import LoginThrottle
from tandemmq.broker.security.logins import Anonymous, Directory, DirectoryError, Logins
from tandemmq.broker.security.users import Hash
from tests.support.security.passwords import cheap
from tests.support.virtual_time import until

pytestmark = pytest.mark.promise("logins", "guessing-is-slowed")

Answer = Principal | ClientError
WRONG = "User name [alice] or password is invalid."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(f"alice:{cheap('right')}:ops\norders:!:shops:CN=orders\n")
    return path


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that were really tried."""
    tried: list[str] = []
    real = Hash.matches

    def matches(self: Hash, password: str) -> bool:
        tried.append(password)
        return real(self, password)

    monkeypatch.setattr(Hash, "matches", matches)
    monkeypatch.setattr(logins, "UNKNOWN_USER", cheap("nobody's"))
    return tried


@pytest.fixture
def made(file: Path) -> Iterator[Logins]:
    access = Logins(users_file=str(file), failed_login_delay_seconds=0, failed_logins_max=3)
    yield access
    access.close()


async def connect(
    access: Logins,
    login: str | None = None,
    passcode: str | None = None,
    *,
    peer: str = "127.0.0.1:1",
    certificate: str | None = None,
    is_external: bool = False,
) -> Answer:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    access.connect(Credentials(peer, login, passcode, certificate, is_external=is_external), answered.set_result)
    return await answered


def refusal_text(answer: Answer) -> str:
    assert isinstance(answer, ClientError), f"{answer} got in"
    is_wrong = answer.message.startswith("User name") and not answer.detail  # otherwise not served, or not now
    assert (answer.kind, answer.is_fatal) == (ErrorKind.LOGIN if is_wrong else ErrorKind.SECURITY, True)
    return answer.message


# ---- a file of users


async def test_a_user_with_the_right_password_has_the_files_groups(made: Logins) -> None:
    assert await connect(made, "alice", "right") == Principal("alice", frozenset({"ops"}))


@pytest.mark.parametrize("passcode", ["wrong", "", None, "right ", "x" * 2_000_000])
async def test_a_wrong_password_is_refused(made: Logins, passcode: str | None) -> None:
    assert refusal_text(await connect(made, "alice", passcode)) == WRONG
    assert refusal_text(await connect(made, None, "right")) == WRONG.replace("alice", "")  # nothing without a name


async def test_an_unknown_name_gets_the_same_refusal_and_takes_as_long(made: Logins, tries: list[str]) -> None:
    assert refusal_text(await connect(made, "eve", "right")) == WRONG.replace("alice", "eve")
    assert tries == ["right"]


async def test_a_certificate_gets_in_as_its_user_and_another_one_is_anonymous(made: Logins) -> None:
    assert await connect(made, certificate="CN=orders") == Principal("orders", frozenset({"shops"}))
    assert await connect(made, certificate="CN=other") == logins.ANONYMOUS
    assert refusal_text(await connect(made, certificate="CN=other", peer="10.0.0.1:1")).startswith("User name []")


async def test_an_external_login_is_never_anonymous(made: Logins) -> None:
    assert await connect(made, certificate="CN=orders", is_external=True) == Principal("orders", frozenset({"shops"}))
    refused = await connect(made, certificate="CN=other", is_external=True)
    assert isinstance(refused, ClientError)
    assert (refused.kind, refused.detail) == (
        ErrorKind.SECURITY,
        "No user has the subject of the client's certificate.",
    )


async def test_a_certificate_does_not_make_a_wrong_password_right(made: Logins) -> None:
    assert refusal_text(await connect(made, "alice", "wrong", certificate="CN=orders")) == WRONG
    # Whoever has no password cannot come by one.
    assert refusal_text(await connect(made, "orders", "!")) == WRONG.replace("alice", "orders")


async def test_a_right_password_is_tried_once_and_known_at_once_then(made: Logins, tries: list[str]) -> None:
    await connect(made, "alice", "right")
    answers: list[Answer] = []
    made.connect(Credentials("10.0.0.9:5", "alice", "right"), answers.append)
    assert len(answers) == 1
    assert tries == ["right"]
    assert refusal_text(await connect(made, "alice", "wrong")) == WRONG


async def test_equal_logins_that_come_together_are_tried_once(made: Logins, tries: list[str]) -> None:
    answers = await asyncio.gather(*(connect(made, "alice", "right") for _ in range(50)))
    assert {answer.name for answer in answers if isinstance(answer, Principal)} == {"alice"}
    assert len(answers) == 50
    assert tries == ["right"]


# ---- without a name


@pytest.mark.parametrize(
    ("anonymous", "here", "there"),
    [(Anonymous(), True, False), (Anonymous(True, True), True, True), (Anonymous(False, False), False, False)],
)
async def test_a_client_without_a_name_is_served_as_configured(
    file: Path, anonymous: Anonymous, here: bool, there: bool
) -> None:
    access = Logins(users_file=str(file), anonymous=anonymous)
    without_users = Logins(anonymous=anonymous)
    for peer, expected in (("127.0.0.1:1", here), ("[::1]:1", here), ("10.0.0.1:1", there), ("?", there)):
        assert isinstance(await connect(access, peer=peer), Principal) is expected
        # Without users, a name belongs to no user.
        answer = await connect(without_users, "alice", "x", peer=peer)
        assert (answer == logins.ANONYMOUS) is expected
    access.close()
    without_users.close()


# ---- guessing


async def test_guesses_are_refused_and_other_logins_are_not(made: Logins, tries: list[str]) -> None:
    for n in range(3):
        assert refusal_text(await connect(made, "alice", f"guess {n}", peer="10.0.0.1:7")) == WRONG
    assert refusal_text(await connect(made, "alice", "right", peer="10.0.0.1:8")).startswith(
        "Too many logins of this name"
    )
    assert tries == ["guess 0", "guess 1", "guess 2"]
    assert isinstance(await connect(made, "alice", "right", peer="10.0.0.2:7"), Principal)
    # Who was right before is known even there: the office of the one who guesses goes on working.
    assert isinstance(await connect(made, "alice", "right", peer="10.0.0.1:9"), Principal)


async def test_a_refusal_takes_its_time(file: Path) -> None:
    access = Logins(users_file=str(file), failed_login_delay_seconds=3600)
    answers: list[Answer] = []
    access.connect(Credentials("h:1", "alice", "x" * 2_000_000), answers.append)  # known to be wrong at once
    await asyncio.sleep(0)
    assert answers == []
    assert access._throttle._failures
    access.close()


async def test_one_who_guesses_does_not_lock_out_others_of_the_same_address(made: Logins) -> None:
    for n in range(3):
        assert refusal_text(await connect(made, "bob", f"guess {n}", peer="127.0.0.1:7")) == WRONG.replace(
            "alice", "bob"
        )
    assert refusal_text(await connect(made, "bob", "guess", peer="127.0.0.1:7")).startswith(
        "Too many logins of this name"
    )
    assert isinstance(await connect(made, "alice", "right", peer="127.0.0.1:8"), Principal)


def test_failures_are_forgotten_after_a_minute_and_what_is_remembered_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = LoginThrottle(2)
    counted.failed("a", "x", 0.0)
    counted.failed("a", "x", 30.0)
    assert counted.holds("a", "x", 59.0)
    assert not counted.holds("a", "y", 59.0)
    assert not counted.holds("a", "x", 60.0)
    monkeypatch.setattr(login_throttle, "REMEMBERED_MAX", 5)
    for n in range(20):
        counted.failed(f"10.0.0.{n}", "x", 100.0)
        assert len(counted._failures) <= 5


def test_very_many_names_from_one_address_are_stopped_by_the_address() -> None:
    counted = LoginThrottle(2)
    for n in range(2 * login_throttle.NAMES_FACTOR):
        assert not counted.holds("a", f"new {n}", 1.0)
        counted.failed("a", f"new {n}", 1.0)
    assert counted.holds("a", "newcomer", 1.0)
    assert not counted.holds("b", "newcomer", 1.0)
    assert not counted.holds("a", "newcomer", 61.0)


def test_logins_that_are_looked_into_have_a_bound_for_each_name_and_each_address() -> None:
    counted = LoginThrottle(2)
    for _ in range(login_throttle.TRIES_OF_NAME_MAX):
        assert not counted.holds("a", "x", 0.0)
        counted.begun("a", "x")
    assert counted.holds("a", "x", 0.0)
    for n in range(login_throttle.TRIES_MAX - login_throttle.TRIES_OF_NAME_MAX):
        assert not counted.holds("a", "newcomer", 0.0)
        counted.begun("a", f"{n}")
    assert counted.holds("a", "newcomer", 0.0)
    assert not counted.holds("b", "x", 0.0)
    for _ in range(login_throttle.TRIES_OF_NAME_MAX):
        counted.ended("a", "x")
    for n in range(login_throttle.TRIES_MAX - login_throttle.TRIES_OF_NAME_MAX):
        counted.ended("a", f"{n}")
    assert not counted.holds("a", "x", 0.0)
    assert counted._tries == {}


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert (
        login_throttle.network("2001:db8:1:2::1")
        == login_throttle.network("2001:db8:1:2:ffff::9")
        == "2001:db8:1:2::/64"
    )
    assert login_throttle.network("::ffff:10.0.0.1") == login_throttle.network("10.0.0.1")
    assert login_throttle.network("fe80::1%eth0") == "fe80::/64"
    assert login_throttle.network("?") == "?"


# ---- logins that wait for others


class Held:
    """Passwords that begin with "guess" are tried until ``gate`` is set. ``tried``: all passwords, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.tried: list[str] = []
        real = Hash.matches
        monkeypatch.setattr(Hash, "matches", lambda own, word: self._waits(word) and real(own, word))

    def _waits(self, word: str) -> bool:
        self.tried.append(word)
        return not word.startswith("guess") or self.gate.wait(60)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    waiting = Held(monkeypatch)
    yield waiting
    waiting.gate.set()


async def guessed(access: Logins, login: str, count: int, network: int = 1) -> list[asyncio.Task[Answer]]:
    """Begun, from as many addresses."""
    guesses = [connect(access, login, f"guess {n}", peer=f"10.0.{network}.{n}:1") for n in range(count)]
    tasks = [asyncio.create_task(each) for each in guesses]
    await asyncio.sleep(0)
    return tasks


async def test_a_known_login_does_not_wait_for_guessers(file: Path, tmp_path: Path, held: Held) -> None:
    """Here, and at the next master, which has read the file."""
    path = str(tmp_path / FILE_NAME)
    first, second = (Logins(users_file=str(file), failed_login_delay_seconds=0) for _ in range(2))
    assert isinstance(await connect(first, "alice", "right"), Principal)
    first.reload()  # what was right is forgotten, and tried again
    for access in (first, second):
        first._known.exchange(path)
        second._known.exchange(path)
        guesses = await guessed(access, "alice", TRIES_OF_ONE_MAX) + await guessed(access, "nobody", 10, 2)
        async with asyncio.timeout(10):
            assert isinstance(await connect(access, "alice", "right"), Principal)
        assert not any(guess.done() for guess in guesses)
        held.gate.set()
        for guess in guesses:
            assert isinstance(await guess, ClientError)
        held.gate.clear()
        access.close()


async def test_a_user_does_not_wait_for_anonymous_and_failed_logins(
    made: Logins, monkeypatch: pytest.MonkeyPatch, held: Held
) -> None:
    assert refusal_text(await connect(made, "alice", "wrong", peer="10.0.1.0:1")) == WRONG
    asked: list[Lane] = []
    put = made._lanes.put
    monkeypatch.setattr(made._lanes, "put", lambda lane, one: (asked.append(lane), put(lane, one)))
    guesses = await guessed(made, "nobody", 1) + await guessed(made, "alice", 2)
    held.gate.set()
    await asyncio.gather(*guesses)
    assert asked == [Lane.OTHERS, Lane.OTHERS, Lane.USERS]


def test_a_full_lane_gives_up_one_of_whoever_has_most_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_lanes, "WAITING_MAX", 3)
    turns = LaneQueue()
    lost = [turns.put(Try(who, lambda: None, lambda future: None)) for who in "aabc"]
    assert [one and one.who for one in lost] == [None, None, None, "a"]


async def test_a_login_without_room_is_refused_with_the_reason(made: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_lanes, "WAITING_MAX", 0)
    assert refusal_text(await connect(made, "alice", "right")) == "Too many logins at once."


async def test_a_name_that_very_many_addresses_guess_has_a_chance_at_an_address_that_it_never_used(
    made: Logins, monkeypatch: pytest.MonkeyPatch, held: Held
) -> None:
    """Each address has one try a minute among those of a user's name, of which some wait, and all others in the last
    lane."""
    monkeypatch.setattr(secrets, "randbelow", lambda count: 0)
    asked: list[tuple[Lane, str]] = []
    put = made._lanes.put
    monkeypatch.setattr(made._lanes, "put", lambda lane, one: (asked.append((lane, one.who)), put(lane, one)))
    guesses = await guessed(made, "alice", 250)
    waiting = TRIES_OF_ONE_MAX + login_lanes.THREADS
    assert Counter(lane for lane, _ in asked) == {Lane.USERS: 250, Lane.OTHERS: 250 - waiting}
    login = asyncio.create_task(connect(made, "alice", "right", peer="10.9.9.9:1"))
    await asyncio.sleep(0)
    assert (Lane.USERS, "alice") in asked[-2:], "which has another one wait in the last lane"
    held.gate.set()
    async with asyncio.timeout(10):
        assert isinstance(await login, Principal)
    await asyncio.gather(*guesses)


async def test_a_login_that_no_client_waits_for_is_not_checked(made: Logins, held: Held) -> None:
    answers = asyncio.Queue[Answer]()
    there = set(range(10))
    for n in range(10):
        shown = Credentials(f"10.0.3.{n}:1", "alice", f"guess {n}", is_wanted=partial(there.__contains__, n))
        made.connect(shown, answers.put_nowait)
    await until(lambda: len(held.tried) == login_lanes.THREADS, "each thread has begun a try")
    there.clear()
    held.gate.set()
    assert isinstance(await connect(made, "alice", "right"), Principal)
    for _ in range(10):
        await answers.get()
    assert held.tried[login_lanes.THREADS :] == ["right"], "except those that a thread had begun"


def test_all_logins_of_a_name_have_a_chance_and_abandoned_ones_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_lanes, "TRIES_OF_ONE_MAX", 3)
    monkeypatch.setattr(secrets, "randbelow", lambda count: 1)
    there = dict.fromkeys(range(5), True)
    tries = [Try("a", lambda: None, lambda future: None, partial(there.__getitem__, n)) for n in range(5)]
    turns = LaneQueue()
    assert [turns.put(one) for one in tries[:3]] == [None] * 3
    assert turns.put(tries[3]) is tries[1]
    there[3] = False
    assert turns.put(tries[4]) is tries[3]
    assert list(iter(turns.next, None)) == [tries[4], tries[2], tries[0]]


async def test_wrong_tries_of_others_at_its_address_hold_back_no_known_user(made: Logins) -> None:
    """The clients are behind one NAT. Failures of the user itself count."""
    assert isinstance(await connect(made, "alice", "right", peer="10.0.0.1:1"), Principal)
    made._remembered.clear()
    for n in range(3 * login_throttle.NAMES_FACTOR):
        made._throttle.failed("10.0.0.1", f"new {n}", asyncio.get_running_loop().time())
    assert refusal_text(await connect(made, "bob", "right", peer="10.0.0.1:1")).startswith("Too many")
    assert isinstance(await connect(made, "alice", "right", peer="10.0.0.1:1"), Principal)
    for n in range(3):
        assert refusal_text(await connect(made, "alice", f"{n}", peer="10.0.0.1:1")) == WRONG
    assert refusal_text(await connect(made, "alice", "4", peer="10.0.0.1:1")).startswith("Too many")


async def test_an_error_in_one_answer_leaves_the_others_theirs(made: Logins, caplog: pytest.LogCaptureFixture) -> None:
    def fail(answer: Answer) -> None:
        raise ZeroDivisionError

    shown = Credentials("127.0.0.1:1", "alice", "right")
    for _ in range(login_lanes.THREADS + 1):
        made.connect(shown, fail)
        assert isinstance(await connect(made, "alice", "right"), Principal)
        made._remembered.clear()
    assert "ZeroDivisionError" in caplog.text


async def test_a_login_that_is_not_decided_is_refused_by_name(
    made: Logins, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "UNDECIDED_SECONDS_MAX", 0.01)
    answer = await connect(made, "alice", "guess")
    assert refusal_text(answer).startswith("The login was not decided within")
    assert isinstance(answer, Undecided)
    assert not made._throttle.has_tried("", "alice", 0.0)


def test_names_take_turns() -> None:
    turns = LaneQueue()
    for who in "aaabcb":
        assert turns.put(Try(who, lambda: None, lambda future: None)) is None
    order = [one.who for one in iter(turns.next, None)]
    assert "".join(order) == "abcaba"


def test_an_unreadable_or_unwritable_file_is_ignored_or_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "away" / FILE_NAME
    known = KnownLogins(None)
    known.add("alice", "10.0.0.1")
    known.exchange(str(path))
    path.parent.mkdir()
    known.exchange(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    known.add("alice", "10.0.0.2")
    known.exchange(str(path))
    path.write_bytes(b"\xff strange\n" + path.read_bytes()[:-5])
    other = KnownLogins(None)
    other.exchange(str(path))
    found = [other.knows_name("alice"), *(other.knows("alice", f"10.0.0.{n}") for n in (1, 2))]
    assert found == [True, True, False], "the last line is cut"
    path.unlink()
    path.symlink_to(tmp_path)
    other.exchange(str(path))


def test_the_known_logins_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_logins, "REMEMBERED_MAX", 2)
    known = KnownLogins(None)
    for login in ("a", "b", "a", "c"):
        known.add(login, "h")
    assert [known.knows(login, "h") for login in "abc"] == [True, False, True]


def test_an_account_pushes_no_other_out_of_what_is_known() -> None:
    known = KnownLogins(None)
    known.add("bob", "10.0.0.1")
    for n in range(2 * known_logins.REMEMBERED_MAX):
        known.add("alice", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
    assert known.knows("bob", "10.0.0.1")
    assert len(known._known[known_logins._digest("alice", "")]) == known_logins.ADDRESSES_MAX == known._count - 1


def test_entries_of_another_broker_stay(tmp_path: Path) -> None:
    """Users log in at the admin server of a standby, too."""
    path = str(tmp_path / FILE_NAME)
    master, standby, next_master = (KnownLogins(None) for _ in range(3))
    for one, login in ((master, "alice"), (standby, "bob"), (next_master, "")):
        if login:
            one.add(login, "h")
        one.exchange(path)
    assert [next_master.knows(login, "h") for login in ("alice", "bob")] == [True, True]


@pytest.mark.parametrize("kind", ["FIFO", "directory", "symbolic link", "another program made this file"])
def test_a_wrong_file_with_the_name_is_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path, other = tmp_path / f"{FILE_NAME}.new", tmp_path / "other"
    other.write_text("kept")
    make: dict[str, Callable[[], object]] = {
        "FIFO": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "symbolic link": lambda: path.symlink_to(other),
        "another program made this file": lambda: path.hardlink_to(other),
    }
    make[kind]()
    known = KnownLogins(None)
    known.add("alice", "h")
    for _ in range(2):
        known.exchange(str(tmp_path / FILE_NAME))
    assert (caplog.text.count(str(path)), caplog.text.count(kind)) == (1, 1)
    assert other.read_text() == "kept"
    path.rmdir() if kind == "directory" else path.unlink()
    known.exchange(str(tmp_path / FILE_NAME))
    assert (tmp_path / FILE_NAME).exists()


def test_a_new_password_costs_what_it_should() -> None:
    assert (users.make("x").ln, users.UNKNOWN_USER.ln) == (14, 14)


# ---- changes of the file


def refresh(access: Logins) -> None:
    """Refresh as often as a broker does until a file that no longer changes takes effect."""
    access.refresh()
    access.refresh()


async def test_a_changed_file_holds_and_what_was_remembered_is_forgotten(made: Logins, file: Path) -> None:
    await connect(made, "alice", "right")
    file.write_text(f"alice:{cheap('newer')}:admins\n")
    refresh(made)
    assert refusal_text(await connect(made, "alice", "right")) == WRONG
    assert await connect(made, "alice", "newer") == Principal("alice", frozenset({"admins"}))
    assert made.problem is None


@pytest.mark.parametrize("text", ["alice\n", "", " \n\n", "# our users\n", "bob:!:o"])
async def test_a_wrong_empty_or_missing_file_changes_nothing(
    made: Logins, file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[frozenset[str]] = []
    made.on_changed = made.on_removed = ended.append
    file.write_text(text)
    refresh(made)
    assert "users are not changed" in caplog.text
    assert "users are not changed" in str(made.problem)
    assert isinstance(await connect(made, "alice", "right"), Principal)
    file.unlink()
    refresh(made)
    made.reload()
    assert isinstance(await connect(made, "alice", "right"), Principal)
    assert ended == []


async def test_a_file_that_could_not_be_read_is_read_when_it_can(
    made: Logins, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("bob:!::CN=bob\n")
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, former[1]))  # nothing can be opened: the file itself stays as it is
    try:
        for _ in range(3):
            refresh(made)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
    assert (caplog.text.count("users are not changed"), made.problem is None) == (1, False)
    refresh(made)
    assert made.problem is None
    assert await connect(made, certificate="CN=bob") == Principal("bob")


def test_a_change_of_rights_is_a_change(file: Path) -> None:
    watched = Watched([str(file)])
    file.chmod(0o604)
    assert [watched.has_changed() for _ in range(3)] == [False, True, False]


async def test_a_file_that_is_being_written_is_read_when_it_is_whole(made: Logins, file: Path) -> None:
    removed: list[frozenset[str]] = []
    made.on_removed = removed.append
    whole = file.read_text()
    for text in (whole.splitlines(keepends=True)[0], f"{whole}bob:!::CN=bob\n"):
        file.write_text(text)
        made.refresh()
    made.refresh()
    assert removed == []
    assert await connect(made, certificate="CN=bob") == Principal("bob")


async def test_only_users_with_another_password_or_group_are_named(made: Logins, file: Path) -> None:
    changed: list[set[str]] = []
    made.on_changed = lambda names: changed.append(set(names))
    line, other = file.read_text().splitlines()
    orders = "orders:!:shops:CN=orders"
    for text in (f"{line}\n{orders}\n", f"alice:{cheap('newer')}:ops\n{orders}\n", f"{orders}x\n", users.NO_USERS):
        file.write_text(text)
        refresh(made)
    assert (other, changed) == (orders, [{"alice"}, {"alice", "orders"}, {"orders"}])


async def test_a_login_from_before_a_change_of_the_file_is_not_cached(
    made: Logins, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule includes a login that began before: its session or connection would depend on outdated data."""
    gate = threading.Event()
    monkeypatch.setattr(Hash, "matches", lambda self, password: gate.wait(10) and self is not logins.UNKNOWN_USER)
    early = asyncio.create_task(connect(made, "alice", "right"))
    await asyncio.sleep(0)
    file.write_text("bob:!:\n")
    refresh(made)
    gate.set()
    assert refusal_text(await early) == WRONG
    assert refusal_text(await connect(made, "alice", "right")) == WRONG


async def test_a_right_new_password_is_right_if_the_file_changes_while_it_waits(
    made: Logins, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    real = Hash.matches

    def matches(self: Hash, password: str) -> bool:
        loop.call_soon_threadsafe(begun.set)
        return may_go_on.wait(10) and real(self, password)

    monkeypatch.setattr(Hash, "matches", matches)
    early = asyncio.create_task(connect(made, "alice", "newer"))
    await begun.wait()
    file.write_text(f"alice:{cheap('newer')}:ops\n")
    refresh(made)
    may_go_on.set()
    assert isinstance(await early, Principal)


# ---- a directory


class Remembered:
    """A directory in memory."""

    def __init__(self) -> None:
        self.people = {("dora", "d"): Principal("dora", frozenset({"ops"}))}
        self.is_away = False
        self.asked = 0

    def find(self, login: str, passcode: str) -> Principal | None:
        self.asked += 1
        if self.is_away:
            raise DirectoryError("ldap://h: no route to host")
        return self.people.get((login, passcode))

    def named(self, login: str) -> Principal | None:
        return self.find(login, "d")


async def test_the_directory_is_asked_for_whom_the_file_does_not_know(file: Path) -> None:
    people = Remembered()
    directory: Directory = people
    access = Logins(users_file=str(file), directory=directory, failed_login_delay_seconds=0)
    assert await connect(access, "dora", "d") == Principal("dora", frozenset({"ops"}))
    assert await connect(access, "dora", "d") == Principal("dora", frozenset({"ops"}))
    assert people.asked == 1
    assert refusal_text(await connect(access, "dora", "x")) == WRONG.replace("alice", "dora")
    assert refusal_text(await connect(access, "alice", "x")) == WRONG
    assert people.asked == 2  # alice is the file's
    access.close()


async def test_a_directory_that_is_away_is_nobodys_wrong_password(caplog: pytest.LogCaptureFixture) -> None:
    people = Remembered()
    access = Logins(directory=people, failed_login_delay_seconds=0, failed_logins_max=1)
    people.is_away = True
    for _ in range(3):
        assert refusal_text(await connect(access, "dora", "d")) == "No user can log in now."
    assert caplog.text.count("no route to host") == 1, "one line a minute"
    people.is_away = False
    assert isinstance(await connect(access, "dora", "d"), Principal)
    access.close()


class Hanging:
    """A directory that does not answer until ``gate`` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def find(self, login: str, passcode: str) -> Principal | None:
        self.gate.wait(60)
        return None


async def test_a_directory_that_hangs_delays_no_user_of_the_file(file: Path) -> None:
    people = Hanging()
    access = Logins(users_file=str(file), directory=people, failed_login_delay_seconds=0)
    waiting = await guessed(access, "dora", 2 * logins.DIRECTORY_THREADS)
    async with asyncio.timeout(10):
        assert isinstance(await connect(access, "alice", "right"), Principal)
    assert not any(each.done() for each in waiting)
    people.gate.set()
    await asyncio.gather(*waiting)
    access.close()


async def test_the_directorys_word_holds_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    people = Remembered()
    access = Logins(directory=people, failed_login_delay_seconds=0)
    monkeypatch.setattr(logins, "DIRECTORY_SECONDS", 0.0)
    await connect(access, "dora", "d")
    people.people.clear()
    assert refusal_text(await connect(access, "dora", "d")) == WRONG.replace("alice", "dora")
    access.close()
