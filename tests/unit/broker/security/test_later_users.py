"""For whom the broker does something later: the user as it is then."""

# proves: nobody-acts-without-a-name, removed-users-act-no-more, users-before-bridges, bridges-are-not-anonymous

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.private_access import PrivateAccess
from tandemmq.broker.security.logins import ANONYMOUS, Anonymous, Logins
from tests.support.security.passwords import cheap
from tests.unit.broker.security.test_logins import Remembered

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
