"""Operators' actions on messages, by the API, with a real broker, its store and STOMP clients."""

# proves: copies-that-move-have-ids-of-their-own, kept-copies-say-that-they-are, what-is-moved-is-compared

from __future__ import annotations

import asyncio
import json
import threading
from itertools import count
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.admin.answers import BYTES_MAX
from tandemmq.broker.admin.api.shown_messages import LISTED_BYTES_MAX
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.schema import Properties
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.stomp_wire import Wire
from tests.support.broker.amqp_socket import AmqpSocket
from tests.support.broker.amqp_wire import header, value
from tests.unit.broker.admin.api.conftest import Clients, Operator

_names = count(1)


@pytest.fixture
def name() -> str:
    """A queue that no other test has."""
    return f"orders.{next(_names)}"


def of(name: str, verb: str) -> str:
    return f"destinations/queue/{name}/messages/{verb}"


def test_a_browse_marks_nothing_and_comes_in_pages(operator: Operator, clients: Clients, name: str) -> None:
    clients.send(name, *(f"m{number}" for number in range(250)), colour="red")
    seen, after = [], 0
    while after is not None:
        page = operator.get(f"destinations/queue/{name}/messages", limit=120, after=after)
        seen += [row["preview"] for row in page["items"]]
        after = page["following"]
    assert seen == [f"m{number}" for number in range(250)]
    row = operator.queue(name)
    assert (row["messages"], row["unacknowledged"], row["consumers"]) == (250, 0, 0)
    assert operator.bodies(name, selector="colour = 'blue'") == []
    assert operator.bodies(name, selector="colour = 'red'", limit=1, after=249) == ["m249"]


def test_a_page_of_long_headers_ends_at_its_bytes_and_the_next_goes_on(
    operator: Operator, clients: Clients, name: str
) -> None:
    """Headers that a client makes as long as they may be: 140 messages made 482 MB of JSON."""
    count = 4 * BYTES_MAX // LISTED_BYTES_MAX // 3
    clients.send(name, *(["m"] * count), **{f"h{number}": "\x01" * 400 for number in range(100)})
    places: list[int] = []
    pages, after = 0, 0
    while after is not None:
        page = operator.get(f"destinations/queue/{name}/messages", limit=1000, after=after)
        assert len(json.dumps(page["items"])) <= BYTES_MAX
        assert all(row["properties_left_out"] > 0 for row in page["items"])
        places += [row["position"] for row in page["items"]]
        pages, after = pages + 1, page["following"]
    assert (pages, places) == (2, list(range(1, count + 1)))


def test_a_message_is_read_with_its_headers_properties_and_body(
    operator: Operator, clients: Clients, name: str
) -> None:
    clients.send(name, "äöü", colour="red", **{"correlation-id": "c", "type": "t", "reply-to": "/queue/back"})
    (row,) = operator.get(f"destinations/queue/{name}/messages")["items"]
    message = operator.get(of(name, row["id"].replace("/", "%2F")))
    assert message["body"] == "äöü"
    assert message["properties"] == {"colour": "red"}
    assert (message["correlation_id"], message["type"], message["reply_to"]) == ("c", "t", "queue://back")
    assert (message["persistent"], message["redelivery_counter"]) == (True, 0)
    assert operator.ask("GET", of(name, "ID:nothing"))[0] == 404


def test_chosen_messages_move_and_keep_what_they_are(operator: Operator, clients: Clients, name: str) -> None:
    clients.send(name, "a", "b", colour="red")
    clients.send(name, "c", colour="blue", priority="7")
    before = {row["preview"]: row for row in operator.get(f"destinations/queue/{name}/messages")["items"]}

    task = operator.change("POST", of(name, "move"), {"to": f"{name}.x", "selector": "colour = 'blue'"})
    assert (task["state"], task["counts"]) == ("done", {"moved": 1})
    task = operator.change("POST", of(name, "move"), {"to": f"{name}.x", "ids": [before["a"]["id"]]})
    assert task["counts"] == {"moved": 1}

    assert operator.bodies(name) == ["b"]
    moved = {row["preview"]: row for row in operator.get(f"destinations/queue/{name}.x/messages")["items"]}
    assert set(moved) == {"a", "c"}
    for body, row in moved.items():
        kept = ("id", "timestamp", "priority", "properties", "redelivery_counter")
        assert {key: row[key] for key in kept} == {key: before[body][key] for key in kept}
    assert clients.answer(f"{name}.x", 2) == ["c", "a"]


def test_messages_whose_ids_an_amqp_client_chose_are_found_by_the_ids_of_the_lists(tmp_path: Path) -> None:
    port = free_port()
    encoded = [header(durable=True) + write_composite(Properties(message_id="same")) + value(body) for body in "abcde"]
    with serving(BrokerProcess(tmp_path / "data", "a", "--amqp", f"127.0.0.1:{port}")) as (broker,):
        with AmqpSocket(port) as client:
            client.send("one", *encoded)
        operator = Operator(broker)
        ids = {row["preview"]: row["id"] for row in operator.get("destinations/queue/one/messages")["items"]}
        assert len(set(ids.values())) == 5
        for verb, body, counts in (("move", "a", {"moved": 1}), ("copy", "b", {"copied": 1})):
            task = operator.change("POST", of("one", verb), {"to": "other", "ids": [ids[body]]})
            assert task["counts"] == counts
        task = operator.change(
            "POST", of("one", "delete"), {"ids": [ids["c"], ids["d"]], "selector": "JMSPriority = 4"}
        )
        assert task["counts"] == {"deleted": 2}
        assert (operator.bodies("one"), operator.bodies("other")) == (["b", "e"], ["a", "b"])
        would = operator.change("POST", of("other", "retry"), {"dry_run": True, "ids": [ids["a"]]})
        assert would["counts"] == {"of_unknown_origin": 1}
        assert operator.bodies("one", selector="JMSMessageID = 'ID:same'") == ["b", "e"], "as JMS clients see it"


def test_copies_have_ids_of_their_own(operator: Operator, clients: Clients, name: str) -> None:
    clients.send(name, "a", "b")
    task = operator.change("POST", of(name, "copy"), {"to": name, "all": True})
    assert task["counts"] == {"copied": 2}, "not the copies that it makes meanwhile"
    rows = operator.get(f"destinations/queue/{name}/messages")["items"]
    assert [row["preview"] for row in rows] == ["a", "b", "a", "b"]
    assert len({row["id"] for row in rows}) == 4
    assert rows[2]["properties"]["originalMessageId"] == rows[0]["id"]


MEETING = """\
[store]
max_failover_producers_to_track = 1
[[virtual_destinations]]
composite_queue = "in"
forward_to = [{queue = "out"}]
forward_only = false
"""


def test_messages_of_one_id_that_meet_survive_a_crash(tmp_path: Path) -> None:
    """A replay knows a message of a queue by its id. So these have ids of their own where they meet: copies of one
    message, one that a client sends again when nothing knows it any more, and one that moves to its own queue."""
    (tmp_path / "tandemmq.toml").write_text(MEETING)
    broker = BrokerProcess(tmp_path / "data", "a", "--config", str(tmp_path / "tandemmq.toml")).start()
    try:
        broker.wait_role("master")
        operator, clients = Operator(broker), Clients(broker)

        def move(name: str, to: str, verb: str = "move") -> None:
            operator.change("POST", of(name, verb), {"to": to, "all": True} if verb == "move" else {"all": True})

        clients.send("a,b", "copy")
        clients.send("b", "numbered", **{"tandemmq-send-id": "p:1"})
        move("b", "a")
        clients.send("other", "x", **{"tandemmq-send-id": "other:1"})
        clients.send("b", "numbered again", **{"tandemmq-send-id": "p:1"})
        move("b", "a")
        clients.send("c", "to itself")
        move("c", "c,d")
        clients.send("in", "kept")
        move("in", "out")
        clients.send("e,f", "retried")
        clients.answer("e", 1, "NACK")
        wait_until(lambda: operator.bodies("ActiveMQ.DLQ.Queue.e"), "it is a dead letter")
        move("ActiveMQ.DLQ.Queue.e", "", "retry")
        move("e", "f")
        wanted = {
            "a": ["copy", "copy", "numbered", "numbered again"],
            "b": [],
            "c": ["to itself"],
            "d": ["to itself"],
            "in": [],
            "out": ["kept", "kept"],
            "e": [],
            "f": ["retried", "retried"],
        }
        broker.kill()
        broker.start()
        broker.wait_role("master")
        assert {name: operator.bodies(name) for name in wanted} == wanted
        rows = {name: operator.get(f"destinations/queue/{name}/messages")["items"] for name in wanted}
        assert all(len({row["id"] for row in found}) == len(found) for found in rows.values())
        assert rows["a"][3]["properties"] == {"originalMessageId": rows["a"][2]["id"]}
    finally:
        broker.stop()
    assert not check(str(broker.data)).problems


def test_messages_held_by_consumers_are_not_changed(operator: Operator, clients: Clients, name: str) -> None:
    clients.send(name, "a", "b")
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        async def take() -> None:
            wire = await Wire.open(clients._port)
            headers = {"id": "1", "destination": f"/queue/{name}", "ack": "client", "activemq.prefetchSize": "1"}
            wire.send("SUBSCRIBE", headers)
            await wire.read()
            taken.set()
            await asyncio.to_thread(done.wait, 30)
            wire.close()

        asyncio.run(take())

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(30)
    try:
        task = operator.change("POST", f"destinations/queue/{name}/purge", {})
        assert task["counts"] == {"deleted": 1}
        assert operator.queue(name)["unacknowledged"] == 1
    finally:
        done.set()
        holder.join()
    wait_until(lambda: operator.queue(name)["consumers"] == 0, "it left")
    assert operator.bodies(name) == ["a"]


def test_deleted_messages_stay_deleted_and_the_others_return_as_not_delivered(
    operator: Operator, clients: Clients, name: str
) -> None:
    clients.send(name, *"abcd")
    operator.change("POST", f"destinations/queue/{name}/pause", {})
    assert operator.change("POST", of(name, "delete"), {"limit": 2})["counts"] == {"deleted": 2}
    operator.change("POST", f"destinations/queue/{name}/resume", {})
    rows = operator.get(f"destinations/queue/{name}/messages")["items"]
    assert [(row["preview"], row["redelivery_counter"]) for row in rows] == [("c", 0), ("d", 0)]
    assert clients.answer(name, 2) == ["c", "d"]


def dead_letters(operator: Operator, clients: Clients, name: str, *bodies: str, **headers: str) -> str:
    """Have so many messages refused; the queue where they are then."""
    clients.send(name, *bodies, **headers)
    assert clients.answer(name, len(bodies), "NACK") == list(bodies)
    dead = f"ActiveMQ.DLQ.Queue.{name}"
    wait_until(lambda: operator.queue(dead)["messages"] == len(bodies), "all are dead letters")
    return dead


def test_dead_letters_go_back_with_all_they_had(operator: Operator, clients: Clients, name: str) -> None:
    dead = dead_letters(operator, clients, name, "a", "b", colour="red")
    (id, _) = [row["id"] for row in operator.get(f"destinations/queue/{dead}/messages")["items"]]
    assert operator.queue(dead)["is_dead_letter_queue"]

    would = operator.change("POST", of(dead, "retry"), {"dry_run": True, "all": True})
    assert would["counts"] == {f"queue://{name}": 2}
    assert operator.queue(dead)["messages"] == 2
    task = operator.change("POST", of(dead, "retry"), {"limit": 1})
    assert task["counts"] == {"retried": 1}

    (row,) = operator.get(f"destinations/queue/{name}/messages")["items"]
    assert (row["preview"], row["id"], row["properties"]) == ("a", id, {"colour": "red"})
    assert (row["cause"], row["redelivery_counter"], row["original_destination"]) == (None, 0, None)
    assert operator.bodies(dead) == ["b"]


def test_a_trial_stops_when_its_message_dies_again(operator: Operator, clients: Clients, name: str) -> None:
    dead = dead_letters(operator, clients, name, *"abcde")
    refusing = threading.Thread(target=clients.answer, args=(name, 1, "NACK"))
    refusing.start()
    task = operator.change("POST", of(dead, "retry"), {"all": True, "canary": True, "wait": 30})
    refusing.join()
    assert (task["state"], task["counts"]) == ("stopped", {"retried": 1, "failed_again": 1})
    assert "1 of 1 trial messages became dead letters again" in task["notes"][0]
    assert operator.queue(dead)["messages"] == 5


def test_a_trial_stops_when_nobody_consumes(operator: Operator, clients: Clients, name: str) -> None:
    dead = dead_letters(operator, clients, name, "a", "b")
    task = operator.change("POST", of(dead, "retry"), {"all": True, "canary": True, "canary_wait": 0.5})
    assert (task["state"], task["counts"]) == ("stopped", {"retried": 1})
    assert "were not consumed within" in task["notes"][0]


def test_a_queue_that_is_deleted_between_two_trials_is_named(operator: Operator, clients: Clients, name: str) -> None:
    dead = dead_letters(operator, clients, name, *"abc")
    trial = {"all": True, "canary": True, "canary_wait": 30, "wait": 0}
    _, task = operator.ask("POST", of(dead, "retry"), trial)
    wait_until(lambda: operator.queue(name)["messages"] == 1, "the first trial begins")
    operator.change("DELETE", f"destinations/queue/{dead}")
    assert clients.answer(name, 1) == ["a"]
    done = wait_until(lambda: _over(operator, task["id"]), "the task is over")
    assert (done["state"], done["error"]) == ("failed", f"queue://{dead} was deleted")


def test_after_trials_that_went_well_all_others_follow(operator: Operator, clients: Clients, name: str) -> None:
    bodies = [f"m{number}" for number in range(15)]
    dead = dead_letters(operator, clients, name, *bodies)
    found: list[str] = []
    taking = threading.Thread(target=lambda: found.extend(clients.answer(name, 15)))
    taking.start()
    task = operator.change("POST", of(dead, "retry"), {"all": True, "canary": True, "wait": 30})
    taking.join()
    assert (task["state"], task["counts"]) == ("done", {"retried": 15})
    assert found == bodies


def test_trials_and_limits_pass_over_letters_of_unknown_origin(operator: Operator, clients: Clients, name: str) -> None:
    dead = f"ActiveMQ.DLQ.Queue.{name}"
    clients.send(dead, "unknown 1", "unknown 2")
    clients.send(name, *"abcd")
    assert clients.answer(name, 4, "NACK") == list("abcd")
    wait_until(lambda: operator.queue(dead)["messages"] == 6, "all are dead letters")
    task = operator.change("POST", of(dead, "retry"), {"limit": 1})
    assert (task["state"], task["counts"]) == ("done", {"of_unknown_origin": 2, "retried": 1})
    assert clients.answer(name, 1) == ["a"]
    taking = threading.Thread(target=clients.answer, args=(name, 3))
    taking.start()
    task = operator.change("POST", of(dead, "retry"), {"all": True, "canary": True, "wait": 30})
    taking.join()
    assert (task["state"], task["counts"], task["notes"]) == ("done", {"of_unknown_origin": 2, "retried": 3}, [])
    assert operator.bodies(dead) == ["unknown 1", "unknown 2"]


def test_a_task_goes_on_beside_its_caller_and_can_be_stopped(operator: Operator, clients: Clients, name: str) -> None:
    dead = dead_letters(operator, clients, name, *(f"m{number}" for number in range(40)))
    status, task = operator.ask("POST", of(dead, "retry"), {"all": True, "rate": 5, "wait": 0})
    assert (status, task["state"]) == (202, "running")
    id = task["id"]
    wait_until(lambda: operator.ask("GET", f"tasks/{id}")[1]["counts"].get("retried", 0) > 0, "it began")
    operator.change("DELETE", f"tasks/{id}")
    done = wait_until(lambda: _over(operator, id), "it stopped")
    assert done["state"] == "stopped"
    assert done["counts"]["retried"] < 40
    assert operator.queue(dead)["messages"] + operator.queue(name)["messages"] == 40
    assert operator.queue(dead)["unacknowledged"] == 0
    assert any(row["id"] == id for row in operator.get("tasks")["items"])


def _over(operator: Operator, id: int) -> dict[str, object] | None:
    status, task = operator.ask("GET", f"tasks/{id}")
    return task if status == 200 and task["state"] != "running" else None


def test_a_request_without_a_choice_of_messages_is_refused(operator: Operator, clients: Clients, name: str) -> None:
    clients.send(name, "a")
    for verb, body in (("move", {"to": "x"}), ("delete", {}), ("retry", {})):
        status, answer = operator.ask("POST", of(name, verb), body)
        assert (status, "all=true" in answer["error"]) == (400, True)
    status, answer = operator.ask("POST", of(name, "delete"), {"selector": "colour ="})
    assert (status, answer["task"]["state"]) == (400, "failed")
    assert operator.bodies(name) == ["a"]


def test_a_journal_file_is_kept_by_a_queue_whose_consumers_are_told(
    broker: BrokerProcess, operator: Operator, clients: Clients, name: str
) -> None:
    clients.send(name, "a")

    async def look() -> int:
        wire = await Wire.open(broker.stomp)
        wire.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{name}", "ack": "client"})
        await wire.read()
        why = await asyncio.to_thread(operator.get, "store/why")
        wire.close()
        holders = [holder for file in why["files"] for holder in file["holders"]]
        return next(int(each["consumers"]) for each in holders if each["destination"] == f"queue://{name}")

    assert asyncio.run(look()) == 1
