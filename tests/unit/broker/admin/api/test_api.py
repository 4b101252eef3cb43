"""The API and its document agree, on a master and on a standby."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from tandemmq.broker.admin.answers import Answers
from tandemmq.broker.admin.api import api as api_module
from tandemmq.broker.admin.api.api import STREAMS_WITHOUT_LOGIN_MAX, EventStream
from tandemmq.broker.admin.api.endpoints import routes
from tandemmq.broker.admin.api.listings import Listings
from tandemmq.broker.admin.callers import TOKEN_HOLDER
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.guard import Guard
from tandemmq.broker.admin.server import AdminServer
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.cli.api import place
from tests.support.acceptance.broker_process import BrokerProcess, tandemmq, wait_until
from tests.support.acceptance.stomp_wire import LOST, Wire
from tests.support.broker.engine_term import EngineTerm
from tests.unit.broker.admin.api.conftest import Clients, Operator
from tests.unit.broker.engine.conftest import PRICES, Harness, come


def test_the_document_names_every_page_and_each_answers_as_it_says(operator: Operator, clients: Clients) -> None:
    clients.send("orders", "a")
    document = operator.get("openapi.json")
    for path, methods in document["paths"].items():
        if "get" not in methods or path.endswith("/stream"):
            continue
        asked = path.replace("{kind}", "queue").replace("{name}", "orders").removeprefix("/api/v1/")
        status, answer = operator.ask("GET", asked.replace("{id}", "1"))
        assert str(status) in methods["get"]["responses"], (path, answer)
        assert status in (200, 404), (path, answer)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "destinations/queue?limit=0", None, 400),
        ("GET", "destinations/queue?limit=1&limit=2", None, 400),
        ("GET", "destinations/queue?colour=red", None, 400),
        ("GET", "destinations/nothing", None, 404),
        ("GET", "destinations/queue/no.such", None, 404),
        ("POST", "destinations", {"kind": "queue", "name": ""}, 400),
        ("POST", "destinations", {"kind": "queue", "name": "a.*"}, 404),
        ("POST", "destinations", {"kind": "queue", "name": "a", "more": 1}, 400),
        ("POST", "destinations", ["a"], 400),
        ("POST", "destinations", {"kind": "queue", "name": "x" * 70_000}, 413),
        ("DELETE", "connections/nobody", None, 404),
        ("DELETE", "subscriptions/nobody/none", None, 404),
        ("DELETE", "tasks/99999", None, 404),
        ("DELETE", "tasks/" + "9" * 400, None, 404),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(
    operator: Operator, method: str, path: str, body: Any, status: int
) -> None:
    found, answer = operator.ask(method, path, body)
    assert found == status, answer
    assert answer["error"]


def test_a_page_of_a_foreign_site_cannot_send_what_is_no_json(broker: BrokerProcess, operator: Operator) -> None:
    asking = Operator(broker, "", **operator.headers)
    asking.headers["Content-Type"] = "text/plain"
    assert asking.ask("POST", "destinations", {"kind": "queue", "name": "a"})[0] == 415


def test_a_connection_is_seen_and_hung_up_on(broker: BrokerProcess, operator: Operator) -> None:
    async def be_hung_up_on() -> None:
        wire = await Wire.open(broker.stomp, **{"client-id": "me"})
        found = await asyncio.to_thread(operator.get, "connections")
        (row,) = [each for each in found["items"] if each["client_id"] == "me"]
        assert row["connector"] == "stomp"
        await asyncio.to_thread(operator.change, "DELETE", f"connections/{row['id']}")
        with pytest.raises(LOST):
            await asyncio.wait_for(wire.read(), 10)
        wire.close()

    asyncio.run(be_hung_up_on())


def test_a_durable_subscription_is_deleted_while_its_client_is_away(broker: BrokerProcess, operator: Operator) -> None:
    async def subscribe() -> Wire:
        wire = await Wire.open(broker.stomp, **{"client-id": "me/too"})
        asked = {"id": "a/#", "destination": "/topic/prices", "activemq.subscriptionName": "a/#", "receipt": "r"}
        wire.send("SUBSCRIBE", asked)
        assert (await wire.read()).command == "RECEIPT"
        return wire

    def held() -> list[str]:
        return [each["name"] for each in operator.get("subscriptions")["items"] if each["client_id"] == "me/too"]

    async def live() -> None:
        wire = await subscribe()
        status, answer = await asyncio.to_thread(operator.ask, "DELETE", "subscriptions/me%2Ftoo/a%2F%23")
        assert (status, await asyncio.to_thread(held)) == (409, ["a/#"]), answer
        wire.close()

    asyncio.run(live())
    wait_until(
        lambda: operator.ask("DELETE", "subscriptions/me%2Ftoo/a%2F%23")[0] == 200, "its client is seen to be gone"
    )
    assert held() == []


def test_a_shared_subscription_is_deleted(tmp_path: Path) -> None:
    """The store has the shared subscriptions of JMS under the broker's own client id."""
    data = tmp_path / "data"
    term = EngineTerm(str(data))
    for client_id, is_global in (("me", False), ("you", True)):
        share = f"#durable/{'' if is_global else client_id}/sub"
        client = come(term, client_id)
        client.subscribe(
            "s", PRICES, share=share, has_terms=True, is_global=is_global, durable_name="sub", receipt="joined"
        )
        term.wait(lambda client=client: client.receipts == ["joined"])
    term.close()
    broker = BrokerProcess(data, "a").start()
    try:
        broker.wait_role("master")
        operator = Operator(broker)
        rows = [(each["client_id"], each["name"]) for each in operator.get("subscriptions")["items"]]
        assert rows == [(CLIENT_ID, "#durable//sub"), (CLIENT_ID, "#durable/me/sub")]
        operator.change("DELETE", f"subscriptions/{CLIENT_ID}/%23durable%2Fme%2Fsub")
        tool = f"--admin=http://127.0.0.1:{broker.admin}"
        assert tandemmq("subscriptions", "delete", CLIENT_ID, "#durable//sub", tool).returncode == 0
        assert json.loads(tandemmq("subscriptions", tool, "--json").stdout)["items"] == []
    finally:
        broker.stop()


async def test_a_membership_of_mqtt_is_deleted_while_others_consume() -> None:
    harness = Harness(EngineSettings())
    clients = [harness.client(id).subscribe("s", PRICES, share="g", durable_name="d").turn() for id in ("me", "you")]
    clients[0].vanish()
    term: Any = SimpleNamespace(engine=lambda: harness.engine)
    nothing: Any = None
    [delete] = [
        each
        for each in Listings(term, nothing, nothing).endpoints()
        if each.method == "DELETE" and each.path.startswith("/subscriptions")
    ]
    call: Any = SimpleNamespace(caller=TOKEN_HOLDER, path={"client_id": "me", "name": "d"})
    deleting = asyncio.ensure_future(delete.handle(call))
    async with asyncio.timeout(10):
        while not deleting.done():
            harness.turn()
            await asyncio.sleep(0)
    assert deleting.result() == {}
    assert not harness.destinations.holdings.of("me")
    harness.client().send("a", PRICES).turn()
    assert clients[1].bodies == ["a"]


STRANGE = ("a/b", "a:b", "a+b%20c", "<img src=x>", ".", "..", "~..", "{x}", "a{b", "a}b", "a#y=1&z", "__proto__", "%2e")


@pytest.mark.parametrize("name", STRANGE)
def test_every_legal_name_is_understood_everywhere(
    broker: BrokerProcess, operator: Operator, clients: Clients, name: str
) -> None:
    operator.change("POST", "destinations", {"kind": "queue", "name": name})
    clients.send(name, "one")
    tool = f"--admin=http://127.0.0.1:{broker.admin}"
    (shown,) = json.loads(tandemmq("browse", name, tool, "--json").stdout)["items"]
    assert shown["preview"] == "one"
    one = place("destinations", "queue", name)
    assert operator.get(one)["name"] == name
    assert name in [each["name"] for each in operator.get("destinations/queue")["items"]]
    status = broker.status()
    assert status is not None
    assert name in [each["name"] for each in status["queues"]]
    assert operator.ask("POST", f"{one}/pause", {})[1]["name"] == name
    assert operator.ask("POST", f"{one}/purge", {})[1]["state"] == "done"
    assert tandemmq("queues", "delete", name, tool).returncode == 0
    assert operator.ask("GET", one)[0] == 404


def test_a_name_with_options_is_refused_and_is_nothing_else(operator: Operator) -> None:
    assert operator.ask("POST", "destinations", {"kind": "queue", "name": "a?x=1#y"})[0] == 404
    assert "there is no queue://a?x=1#y" in operator.ask("GET", place("destinations", "queue", "a?x=1#y"))[1]["error"]


def test_events_come_as_they_happen(broker: BrokerProcess, operator: Operator) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin, timeout=30)
    connection.request("GET", "/api/v1/events/stream", headers=operator.headers)
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.read(22).startswith(b": the broker is there")
    connection.close()


def test_streams_without_a_login_leave_some_for_others(broker: BrokerProcess, operator: Operator) -> None:
    """The broker has no users, so every caller is a viewer."""
    stranger = Operator(broker, "").headers
    statuses = []
    with contextlib.ExitStack() as streams:
        for headers in [stranger] * (STREAMS_WITHOUT_LOGIN_MAX + 1) + [operator.headers]:
            connection = http.client.HTTPConnection("127.0.0.1", broker.admin, timeout=30)
            streams.callback(connection.close)
            connection.request("GET", "/api/v1/events/stream", headers=headers)
            response = connection.getresponse()
            streams.callback(response.close)  # it is the one that has the socket
            statuses.append(response.status)
    assert statuses == [200] * STREAMS_WITHOUT_LOGIN_MAX + [503, 200]
    wait_until(lambda: _streams(broker, stranger) == 200, "who hangs up leaves its place")


def _streams(broker: BrokerProcess, headers: dict[str, str]) -> int:
    """The status of one more."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/events/stream", headers=headers)
        return connection.getresponse().status


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_events_between_two_streams_are_sent_by_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """The browser names the last id that it got. That of a former process stands for nothing of this one."""
    monkeypatch.setattr(api_module, "STREAM_SECONDS_MAX", 0.05)
    monkeypatch.setattr(api_module, "STREAM_CHECK_SECONDS", 0.01)
    ring, guard = EventRing("a", None), Guard(str(tmp_path / "token"), (), None)
    ring.record("before")
    stream = EventStream(ring, guard.sessions)
    pages = routes(stream.endpoints(), guard, Answers())
    server = AdminServer("127.0.0.1", 0, lambda: {"role": "master", "epoch": 1}, pages, check=guard.check)
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url, trust_env=False) as client:

            async def watched(**headers: str) -> tuple[str, list[str]]:
                """The last id, and the kinds of events."""
                async with client.get("/api/v1/events/stream", headers=headers) as answer:
                    lines = (await answer.text()).splitlines()
                ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
                told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
                return ids[-1], [each["kind"] for each in told]

            last, kinds = await watched()
            assert kinds == []
            for kind in ("one", "two"):
                ring.record(kind)
            if is_restarted:
                last = f"former.{last.partition('.')[2]}"
            last, kinds = await watched(**{"Last-Event-ID": last})
            assert kinds == (["before", "one", "two"] if is_restarted else ["one", "two"])
            assert (await watched(**{"Last-Event-ID": last}))[1] == []
    finally:
        await server.stop()


def test_a_standby_answers_and_says_who_is_master(tmp_path: Path) -> None:
    master = BrokerProcess(tmp_path / "data", "a").start()
    master.wait_role("master")
    standby = BrokerProcess(tmp_path / "data", "b").start()
    try:
        standby.wait_role("standby")
        (token,) = Path(standby.data, "index").glob("b.admin-token")
        operator = Operator(standby, "", Authorization=f"Bearer {token.read_text().strip()}")
        for page in ("broker", "connectors", "locker", "store", "replication", "events", "session"):
            assert operator.get(page) is not None
        assert operator.get("broker")["role"] == "standby"
        for method, page, body in (
            ("GET", "destinations/queue", None),
            ("GET", "connections", None),
            ("POST", "destinations", {"kind": "queue", "name": "a"}),
            ("POST", "store/checkpoint", {}),
            ("POST", "handover", {}),
        ):
            status, answer = operator.ask(method, page, body)
            assert (status, answer["role"], answer["holder"]["name"]) == (409, "standby", "a"), page
    finally:
        standby.stop()
        master.stop()


@pytest.mark.thorough
def test_every_answer_matches_the_openapi_document(secured: BrokerProcess) -> None:
    """Requests made of the document, by schemathesis: no answer is an error of the broker, or another than it says."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    operator = Operator(secured)
    schema = schemathesis.openapi.from_url(f"{operator.place}/api/v1/openapi.json", headers=operator.headers)
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith(("/stream", "/handover", "/compact", "/events")):
            continue

        @given(case=operation.as_strategy())
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        def try_it(case: Any) -> None:
            response = case.call(headers=operator.headers, timeout=60)
            # What a name or a selector may be is more than a schema says.
            case.validate_response(response, excluded_checks=[positive_data_acceptance])

        try_it()
    assert "Traceback" not in secured.log.read_text()
