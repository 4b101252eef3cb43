"""Later actions of the broker for a user use the rights that the user has at that time."""

# proves: a-user-needs-a-name, removed-users-act-no-more, users-before-bridges, bridges-are-not-anonymous

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemmq.broker.admin.callers import TOKEN_HOLDER, Caller, Role
from tandemmq.broker.admin.guard import Guard
from tandemmq.broker.core.access import PrivateAccess
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security.logins import ANONYMOUS, Anonymous, Logins
from tests.support.security.passwords import cheap
from tests.unit.broker.security.test_logins import Remembered, connect

OPEN, CLOSED = Anonymous(), Anonymous(False, False)
ALICE, DORA = Principal("alice", frozenset({"ops"})), Principal("dora", frozenset({"ops"}))


def outcome(access: Logins | PrivateAccess, user: str | None) -> Principal | ErrorKind:
    try:
        return access.identify(user)
    except ClientError as error:
        return ErrorKind.GENERAL if error.is_fatal else error.kind


@pytest.mark.parametrize(
    ("has_file", "anonymous", "user", "expected"),
    [
        (True, OPEN, "alice", ALICE),
        (True, OPEN, "eve", ErrorKind.SECURITY),
        (True, OPEN, None, ANONYMOUS),
        (True, OPEN, "anonymous", ANONYMOUS),
        (True, CLOSED, "alice", ALICE),
        (True, CLOSED, None, ErrorKind.SECURITY),
        (True, CLOSED, "anonymous", ErrorKind.SECURITY),
        (False, OPEN, "alice", ANONYMOUS),  # names prove nothing there
        (False, CLOSED, "alice", ErrorKind.SECURITY),
    ],
)
def test_it_is_the_user_of_now(
    tmp_path: Path, has_file: bool, anonymous: Anonymous, user: str | None, expected: object
) -> None:
    file = tmp_path / "users"
    # A user of the name that anonymous clients have, with other groups, is not meant by it.
    file.write_text(f"alice:{cheap('right')}:ops\nanonymous:{cheap('right')}:ops\n")
    access = Logins(users_file=str(file) if has_file else None, anonymous=anonymous)
    assert outcome(access, user) == expected
    if has_file:
        file.write_text("bob:!:\n")
        access.reload()
        assert outcome(access, "alice") is ErrorKind.SECURITY
    access.close()


async def test_the_directory_is_asked_beside_the_loop_and_its_word_is_remembered() -> None:
    people = Remembered()
    access = Logins(directory=people)

    async def told(user: str) -> Principal | ErrorKind:
        while (found := outcome(access, user)) is ErrorKind.TIMEOUT:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        return found

    assert outcome(access, "dora") is ErrorKind.TIMEOUT
    assert await told("dora") == DORA
    assert await told("eve") is ErrorKind.SECURITY
    assert people.asked == 2
    people.is_away = True
    assert await told("dora") == DORA
    assert await told("emil") is ErrorKind.RESOURCE
    access.close()


async def test_the_directory_ends_sessions_of_removed_or_changed_users_and_a_silent_one_does_not(
    tmp_path: Path,
) -> None:
    # proves: a-silent-directory-ends-nothing
    file, people = tmp_path / "users", Remembered()
    file.write_text(f"alice:{cheap('right')}:ops\n")
    access = Logins(users_file=str(file), directory=people)
    guard = Guard(str(tmp_path / "token"), [], access)
    everybody = frozenset(Caller(each.name, Role.VIEWER, each) for each in (ALICE, DORA)) | {TOKEN_HOLDER}
    for said, people.is_away, ended in (
        (DORA, False, set()),
        (None, True, set()),
        (None, False, {"dora"}),
        (Principal("dora", frozenset({"shops"})), False, {"dora"}),
    ):
        people.people = {} if said is None else {("dora", "d"): said}
        people.asked = 0
        access.reload()  # forgets the answers of the directory
        for caller in everybody:
            guard.sessions.begin(caller)
        ends = {each.name: guard.sessions.ends_of(each.name) for each in everybody}
        guard.refresh()
        while outcome(access, "dora") is ErrorKind.TIMEOUT:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        for _ in range(3):
            guard.refresh()
        assert {each for each, times in ends.items() if guard.sessions.ends_of(each) > times} == ended
        assert people.asked == 1, "one answer holds for a minute"
    access.close()


async def test_a_login_after_a_change_of_the_directory_or_file_uses_the_present_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # proves: a-name-comes-into-the-file
    file, people = tmp_path / "users", Remembered()
    file.write_text("bob:!:\n")
    access = Logins(users_file=str(file), directory=people)
    with monkeypatch.context() as patch:  # the answer at the login is no longer valid, as after a minute
        patch.setattr("tandemmq.broker.security.identities.HOLDS_SECONDS", 0.0)
        assert await connect(access, "dora", "d") == DORA
    now = Principal("dora", frozenset({"shops"}))
    people.people = {("dora", "d"): now}
    while outcome(access, "dora") is ErrorKind.TIMEOUT:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    assert not access.holds(DORA)
    assert await connect(access, "dora", "d") == now, "no remembered login takes its place"
    people.people = {("dora", "e"): DORA}
    assert await connect(access, "dora", "e") == DORA
    assert access.holds(DORA), "the login is newer than what was remembered"
    file.write_text(f"dora:{cheap('right')}:shops\n")
    access.reload()
    assert (access.holds(DORA), access.holds(now)) == (False, True)
    access.close()


BRIDGE = Principal("bridge b", may_everything=True)


@pytest.mark.parametrize("anonymous", [OPEN, CLOSED], ids=["open", "closed"])
def test_a_bridge_is_no_anonymous_client_where_there_are_no_users(anonymous: Anonymous) -> None:
    access = PrivateAccess(Logins(anonymous=anonymous), [BRIDGE])
    assert access.identify(BRIDGE.name) is BRIDGE
    assert outcome(access, "bridge c") == (ANONYMOUS if anonymous is OPEN else ErrorKind.SECURITY)


@pytest.mark.parametrize("has_user", [True, False])
async def test_a_user_of_the_directory_is_meant_before_a_bridge_of_the_same_name(has_user: bool) -> None:
    people = Remembered()
    user = Principal(BRIDGE.name, frozenset({"ops"}))
    if has_user:
        people.people = {(user.name, "d"): user}
    logins = Logins(directory=people)
    access = PrivateAccess(logins, [BRIDGE])
    assert outcome(access, BRIDGE.name) is ErrorKind.TIMEOUT
    while (found := outcome(access, BRIDGE.name)) is ErrorKind.TIMEOUT:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    assert found == (user if has_user else BRIDGE)
    logins.close()
