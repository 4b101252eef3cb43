"""Commands of an operator against a real broker, and the rights that they require."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandemmq.cli import main
from tests.support.acceptance.broker_process import ROOT, BrokerProcess, serving, wait_until
from tests.support.prove import IS_THOROUGH
from tests.support.security.passwords import cheap
from tests.unit.broker.admin.api.conftest import Clients, Operator

DEAD = "ActiveMQ.DLQ.Queue.orders"


class Shell:
    def __init__(self, broker: BrokerProcess) -> None:
        self._where = ("--admin", f"http://127.0.0.1:{broker.admin}")

    def says(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, [*words, *self._where])
        assert done.exit_code == code, done.output
        return done.output

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.says(*words, "--json", code=code))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with serving(BrokerProcess(tmp_path / "data", "a")) as (broker,):
        yield broker


@pytest.mark.promise("daily-work")
def test_the_daily_work_on_queues(broker: BrokerProcess) -> None:
    shell, clients = Shell(broker), Clients(broker)
    assert shell.says("queues", "create", "orders") == "queue://orders is there\n"
    shell.says("topics", "create", "prices")
    clients.send("orders", "red", colour="red")
    clients.send("orders", "blue", "blue too", colour="blue")

    assert [line.split()[:2] for line in shell.says("queues").splitlines()] == [["name", "messages"], ["orders", "3"]]
    assert [row["name"] for row in shell.json("topics")["items"]] == ["prices"]
    page = shell.json("browse", "orders", "--selector", "colour = 'red'")
    (row,) = page["items"]
    assert "colour" in shell.says("browse", "orders", "--id", row["id"])

    assert shell.says("move", "orders", "parked", "--selector", "colour = 'blue'", "--limit", "1") == "1 moved\n"
    assert shell.says("copy", "parked", "audit", "--all") == "1 copied\n"
    assert "consumers paused" in shell.says("queues", "pause", "orders")
    assert "consumers" in shell.says("queues", "list", "--filter", "ord*").splitlines()[1]
    assert "not paused" in shell.says("queues", "resume", "orders")
    assert shell.says("queues", "purge", "orders", "--id", row["id"]) == "1 deleted\n"
    assert shell.says("queues", "purge", "orders") == "1 deleted\n"
    assert shell.json("queues", "delete", "orders")["deleted"]
    assert {row["name"] for row in shell.json("queues")["items"]} == {"parked", "audit"}
    assert [task["kind"] for task in shell.json("tasks")["items"]][:2] == ["purge", "delete"]


@pytest.mark.promise("daily-work")
def test_dead_letters_are_tried_and_retried(broker: BrokerProcess) -> None:
    shell, clients = Shell(broker), Clients(broker)
    clients.send("orders", "a", "b")
    clients.answer("orders", 2, "NACK")
    wait_until(lambda: shell.json("queues", "--filter", DEAD)["items"][0]["messages"] == 2, "both are dead letters")
    assert shell.says("retry", DEAD, "--dry-run") == "2 queue://orders\n"
    failed = shell.json("retry", DEAD, "--all", "--canary", "--canary-wait", "0.3", code=1)
    assert (failed["task"]["state"], failed["task"]["counts"]) == ("stopped", {"retried": 1})
    assert shell.says("retry", DEAD, "--all") == "1 retried\n"
    assert clients.answer("orders", 2) == ["a", "b"]


def test_what_is_wrong_ends_with_a_sentence(broker: BrokerProcess) -> None:
    shell = Shell(broker)
    assert "there is no queue://nothing" in shell.says("queues", "delete", "nothing", code=1)
    assert "with --all" in shell.says("move", "a", "b", code=2)
    assert "cannot be combined with other choices" in shell.says("move", "a", "b", "--all", "--limit", "1", code=2)
    assert shell.json("connections", "close", "nobody", code=1)["code"] == 1
    assert shell.json("top", "--count", "1", "--interval", "0.2") == {"queues": []}
    assert shell.json("consumers")["items"] == []
    assert shell.json("subscriptions")["items"] == []
    assert shell.json("subscriptions", "delete", "nobody", "none", code=1)["code"] == 1


NOBODY = 65534
SETTINGS = """\
[security]
users_file = "{users}"
allow_anonymous = "true"
failed_login_delay = 1

[[security.authorization]]
queue = ">"
read = ["*"]
write = ["*"]
admin = ["operators"]
[[security.authorization]]
topic = ">"
admin = ["operators"]
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[BrokerProcess]:
    users, settings = tmp_path / "users", tmp_path / "tandemmq.toml"
    users.write_text(f"ann:{cheap('secret')}:operators:\nbob:{cheap('secret')}:shops:\n")
    users.chmod(0o600)
    settings.write_text(SETTINGS.format(users=users))
    with serving(BrokerProcess(tmp_path / "data", "a", "--config", str(settings))) as (broker,):
        yield broker


def handover(admin: str, **environment: str) -> Result:
    """Run the command in this process, because the start of an interpreter for each command is slow."""
    return CliRunner().invoke(main, ["handover", "--admin", admin, "--wait", "0"], env=environment)


@pytest.mark.promise("admin-rights")
def test_a_handover_is_for_who_may(guarded: BrokerProcess) -> None:
    place = f"127.0.0.1:{guarded.admin}"
    for wrong in (
        handover(f"http://{place}", TANDEMMQ_ADMIN_TOKEN="tandemmq-admin-wrong"),
        handover(f"http://ann:wrong@{place}"),
        handover(f"http://bob:secret@{place}"),
    ):
        assert wrong.exit_code == 1, wrong.output
        assert "the admin token is needed, or a user with admin rights" in wrong.output
    token = guarded.authorization["Authorization"].split()[1]
    for admin, environment in (
        (f"http://{place}", {}),
        (f"http://{place}", {"TANDEMMQ_ADMIN_TOKEN": token}),
        (f"http://ann:secret@{place}", {}),
    ):
        done = handover(admin, **environment)
        assert done.exit_code == 0, done.output
        assert "released the lock" in done.output
        guarded.wait_role("master")


@pytest.mark.promise("admin-rights")
@pytest.mark.parametrize(
    ("login", "environment", "has_token", "sees"),
    [
        ((), {}, True, True),  # the file of the token is found, and may be read
        ((), {"TANDEMMQ_ADMIN_TOKEN": "wrong"}, True, None),
        (("--login", "ann"), {"TANDEMMQ_PASSCODE": "secret"}, False, True),
        (("--login", "ann"), {"TANDEMMQ_PASSCODE": "wrong"}, True, None),
        # A user without a role sees the same as without a login.
        (("--login", "bob"), {"TANDEMMQ_PASSCODE": "secret"}, True, True),
        (("--login", "bob"), {"TANDEMMQ_PASSCODE": "secret"}, False, False),
        ((), {}, False, False),
    ],
)
def test_status_is_whole_for_viewers_and_short_for_others(
    guarded: BrokerProcess, login: tuple[str, ...], environment: dict[str, str], has_token: bool, sees: bool | None
) -> None:
    """``sees`` None: the login is wrong, and the request is refused."""
    if not has_token:
        Path(guarded.data, "index", "a.admin-token").write_text("no token\n")
    command = ["status", "--json", "--admin", f"http://127.0.0.1:{guarded.admin}", *login]
    done = CliRunner().invoke(main, command, env=environment)
    if sees is None:
        assert done.exit_code == 1
        assert "log in as a user with the role viewer" in done.output
        return
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert answer["role"] == "master"
    assert (answer.keys() == {"role", "epoch", "version", "live", "ready"}) is not sees
    done = CliRunner().invoke(main, ["lock", "status", *command[2:]], env=environment)
    assert done.exit_code == (0 if sees else 3), done.output
    if login and not sees:
        assert "bob has no role; the role viewer is required" in done.output


def test_another_user_of_the_host_is_told_what_he_lacks(guarded: BrokerProcess) -> None:
    token = Path(guarded.data, "index", "a.admin-token")
    under = ()
    if os.geteuid() == 0:  # root may read any file: run without this capability
        os.chown(token, NOBODY, NOBODY)
        under = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    else:
        token.chmod(0)
    command = [*under, sys.executable, "-m", "tandemmq", "handover", "--admin", f"http://127.0.0.1:{guarded.admin}"]
    done = subprocess.run([*command, "--wait", "0"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"requires its admin token, in {token}: Permission denied" in done.stderr
    assert "--login NAME" in done.stderr


MESSAGES = 300
KILLS = 4 if IS_THOROUGH else 2


@pytest.mark.promise("moved-once")
def test_no_message_is_lost_or_doubled_by_a_kill_between_two_moves(broker: BrokerProcess) -> None:
    """Messages are moved in both directions while the broker is killed repeatedly."""
    bodies = [f"m{number}" for number in range(MESSAGES)]
    Clients(broker).send("here", *bodies)
    for _ in range(KILLS):
        moving = [threading.Thread(target=_move, args=(broker, *way)) for way in (("here", "there"), ("there", "here"))]
        for each in moving:
            each.start()
        time.sleep(0.2)
        broker.kill()
        for each in moving:
            each.join()
        broker.start()
        broker.wait_role("master")
    operator = Operator(broker)
    found = [*operator.bodies("here", limit=1000), *operator.bodies("there", limit=1000)]
    assert sorted(found) == sorted(bodies)


def _move(broker: BrokerProcess, here: str, there: str) -> None:
    """Move messages until the broker ends."""
    try:
        operator = Operator(broker)
        while True:
            operator.ask("POST", f"destinations/queue/{here}/messages/move", {"to": there, "limit": 20})
    except OSError:
        pass


FILE_BYTES = 256 * 1024


def tandemmq(*arguments: str) -> Result:
    """Run the command in this process, because the start of an interpreter for each command is slow."""
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def master(data: Path) -> Iterator[BrokerProcess]:
    settings = (f"store.journal_max_file_length={FILE_BYTES}", "store.enable_compaction=false")
    with serving(BrokerProcess(data, "a", *(word for each in settings for word in ("--set", each)))) as (broker,):
        yield broker


@pytest.mark.promise("bytes-are-explained")
def test_why_and_compact_over_the_admin_address(data: Path, master: BrokerProcess) -> None:
    admin = f"127.0.0.1:{master.admin}"
    body = "x" * 20_000
    for number in range(5):
        assert tandemmq("send", "forgotten", f"kept {number}", "--url", master.url).exit_code == 0
        assert tandemmq("send", "busy", body, "--count", "12", "--url", master.url).exit_code == 0
    # Consume the rest of the busy queue, so that only the forgotten queue holds files.
    assert tandemmq("receive", "busy", "--count", "60", "--url", master.url).exit_code == 0

    result = tandemmq("store", "why", "--admin", admin, "--json")
    assert result.exit_code == 0, result.stderr
    why = json.loads(result.stdout)
    holders = {holder["destination"] for file in why["files"] for holder in file["holders"]}
    assert holders == {"queue://forgotten"}
    held = next(file for file in why["files"] if file["state"] == "held" and file["holders"])
    assert held["holders"][0]["consumers"] == 0
    assert "no consumer: consume or purge" in held["action"]
    assert "oldest " in held["action"]
    assert " second" in held["action"], "the age is that of the sender's time stamp"
    assert sum(thing["bytes"] for thing in why["things"] if thing["kind"] == "journal") == why["journal_bytes"]

    one = tandemmq("store", "why", held["name"], "--admin", admin)
    assert one.exit_code == 0, one.stderr
    assert one.stdout.startswith(held["name"])
    assert tandemmq("store", "why", "db-999", "--admin", admin).exit_code == 1
    offline = tandemmq("store", "why", str(data))
    assert offline.exit_code == 0, offline.stderr
    assert "in use by a " in offline.stderr
    assert f"--admin http://{admin}" in offline.stderr
    refused = tandemmq("store", "compact", str(data))
    assert refused.exit_code == 1
    assert "in use by a " in refused.stderr

    compacted = tandemmq("store", "compact", "--admin", admin, "--json")
    assert compacted.exit_code == 0, compacted.stderr
    report = json.loads(compacted.stdout)
    after = json.loads(tandemmq("store", "why", "--admin", admin, "--json").stdout)
    assert report["messages"] >= 1
    assert after["journal_bytes"] < why["journal_bytes"]
    assert after["is_bound_held"]
    assert after["live_messages"] == 5

    received = tandemmq("receive", "forgotten", "--count", "5", "--url", master.url)
    assert received.stdout.split("\n")[:5] == [f"kept {number}" for number in range(5)]
