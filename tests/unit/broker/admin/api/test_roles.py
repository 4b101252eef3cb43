"""Permissions of callers of the API: with users and rights, with sessions, and without."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.stomp_wire import LOST, Wire
from tests.support.security.passwords import cheap
from tests.unit.broker.admin.api.conftest import USERS, Operator

READ = ("GET", "destinations/queue", None)
CREATE = ("POST", "destinations", {"kind": "queue", "name": "orders.a"})
BROWSE = ("GET", "destinations/queue/orders.a/messages", None)
OTHERS = ("POST", "destinations", {"kind": "queue", "name": "prices"})
CHECKPOINT = ("POST", "store/checkpoint", {})


@pytest.mark.parametrize(
    ("user", "statuses"),
    [
        ("sue", (401, 401, 401, 401, 401)),
        ("vic", (200, 403, 403, 403, 403)),
        ("ola", (200, 200, 200, 403, 403)),
        ("ada", (200, 200, 200, 200, 200)),
        (None, (200, 200, 200, 200, 200)),
        ("wrong", (401, 401, 401, 401, 401)),
    ],
)
def test_each_may_what_his_role_and_rights_say(
    secured: BrokerProcess, user: str | None, statuses: tuple[int, ...]
) -> None:
    assert Operator(secured).ask(*CREATE)[0] == 200
    operator = Operator(secured, user)
    answers = [operator.ask(*each) for each in (READ, CREATE, BROWSE, OTHERS, CHECKPOINT)]
    assert tuple(status for status, _ in answers) == statuses, answers
    assert operator.ask("GET", "session")[0] == 200


def test_a_refusal_of_rights_is_logged_with_who_and_what(secured: BrokerProcess) -> None:
    Operator(secured, "ola").ask("POST", "destinations", {"kind": "queue", "name": "secret"})
    told = "User ola is not authorized to create: queue://secret"
    secured.wait_log(told)
    assert "denied" in secured.log.read_text()


def test_rights_hold_for_where_messages_go(secured: BrokerProcess) -> None:
    admin, ola = Operator(secured), Operator(secured, "ola")
    admin.change("POST", "destinations", {"kind": "queue", "name": "orders.from"})
    status, answer = ola.ask("DELETE", "destinations/queue/prices.none")
    assert status == 404, answer
    admin.change("POST", "destinations", {"kind": "queue", "name": "prices"})
    assert ola.ask("DELETE", "destinations/queue/prices")[0] == 403
    status, answer = ola.ask("POST", "destinations/queue/prices/purge", {})
    assert (status, answer["task"]["state"]) == (403, "failed")
    assert ola.ask("POST", "destinations/queue/prices/pause", {})[0] == 403
    assert ola.ask("POST", "destinations/queue/orders.from/pause", {})[0] == 200


def test_a_session_changes_something_with_its_second_secret_alone(secured: BrokerProcess) -> None:
    place = f"http://127.0.0.1:{secured.admin}"
    request = urllib.request.Request(
        f"{place}/api/v1/session",
        b'{"login": "ada", "passcode": "secret"}',
        {"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request) as response:
        cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    cookie = cookie.partition(";")[0]
    with_cookie = Operator(secured, "", Cookie=cookie)
    said = with_cookie.get("session")
    assert (said["name"], said["role"]) == ("ada", "admin")
    assert with_cookie.ask(*READ)[0] == 200
    assert with_cookie.ask(*CREATE)[0] == 401
    assert Operator(secured, "", Cookie=cookie, **{"X-CSRF-Token": "wrong"}).ask(*CREATE)[0] == 401
    with_both = Operator(secured, "", Cookie=cookie, **{"X-CSRF-Token": said["csrf"]})
    assert with_both.ask(*CREATE)[0] == 200
    assert with_both.ask("DELETE", "session")[0] == 200
    assert with_both.ask(*READ)[0] == 401


def test_a_session_and_its_stream_end_with_the_password_they_rest_on(secured: BrokerProcess) -> None:
    users = Path(secured.options[1]).parent / "users"
    place = f"http://127.0.0.1:{secured.admin}/api/v1"
    body, words = b'{"login": "vic", "passcode": "secret"}', {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{place}/session", body, words, method="POST")) as response:
        cookie = {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}
    vic = Operator(secured, "", **cookie)
    assert vic.get("session")["name"] == "vic"
    with urllib.request.urlopen(urllib.request.Request(f"{place}/events/stream", headers=cookie), timeout=30) as stream:
        users.write_text(users.read_text().replace("vic:", f"vic:{cheap('other')}:watchers:\n#"))
        while stream.readline():
            pass
    assert vic.get("session")["name"] == "nobody"
    assert vic.ask(*READ)[0] == 401


def test_wrong_logins_begin_no_session(secured: BrokerProcess) -> None:
    for body in ({"login": "ada", "passcode": "no"}, {"token": "tandemmq-admin-no"}, {}):
        status, answer = Operator(secured, "", X="x").ask("POST", "session", body)
        assert status == 401, answer


def test_without_users_everybody_sees_and_nobody_reads_messages_without_the_token(broker: BrokerProcess) -> None:
    anybody = Operator(broker, "", X="x")
    Operator(broker).change("POST", "destinations", {"kind": "queue", "name": "orders.a"})
    assert anybody.ask(*READ)[0] == 200
    status, answer = anybody.ask(*BROWSE)
    assert status == 401
    assert answer["token_file"].endswith("a.admin-token")
    assert anybody.ask(*CREATE)[0] == 401


def test_users_are_shown_without_their_passwords(secured: BrokerProcess) -> None:
    answer = Operator(secured, "ada").get("users")
    assert [each["name"] for each in answer["users"]] == ["ada", "app", "ola", "sue", "vic"]
    assert "scrypt" not in str(answer)
    assert {"kind": "queue", "pattern": "orders.>"}.items() <= answer["authorization"][1].items()
    assert Operator(secured, "ola").ask("GET", "users")[0] == 403


def test_a_user_who_is_removed_is_hung_up_on_and_his_session_ends(secured: BrokerProcess) -> None:
    users = Path(secured.options[1]).parent / "users"
    text = users.read_text()
    users.write_text(f"{text}eve:{cheap('secret')}:apps,watchers:\n")
    eve = Operator(secured, "eve")
    # Not by asking: who asks too early too often is refused unread for a minute.
    secured.wait_log(f"{len(USERS) + 1} users")
    assert eve.get("session")["name"] == "eve"

    async def be_hung_up_on() -> None:
        wire = await Wire.open(secured.stomp, login="eve", passcode="secret")
        other = await Wire.open(secured.stomp, login="app", passcode="secret")
        users.write_text(text)
        with pytest.raises(LOST):
            await asyncio.wait_for(wire.read(), 30)
        other.send("SEND", {"destination": "/queue/orders.kept", "receipt": "r"}, b"x")
        assert (await other.read()).command == "RECEIPT"
        wire.close()
        other.close()

    asyncio.run(be_hung_up_on())
    assert eve.ask("GET", "session")[1]["name"] == "nobody"
