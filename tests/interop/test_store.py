"""Whole directories: what ActiveMQ wrote opens here, what we wrote opens in ActiveMQ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.store.operations import AddMessage, AddSubscription, Atomic
from tandemmq.store.records.commands import encode_add, encode_commit, encode_subscription
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.settings import StoreSettings
from tests.support.store.store_harness import Q, Term

pytestmark = [pytest.mark.service, pytest.mark.promise("bytes-are-activemqs")]

Owner = dict[str, Any]
ActiveMQ = Callable[..., list[Owner]]
T = Destination(DestinationKind.TOPIC, "T.A")


def held_here(term: Term) -> dict[str, list[str]]:
    """Owner in words -> message ids in order."""
    found = {}
    for owner in term.owners:
        name = owner.destination.name
        if owner.subscription_name is not None:
            name = f"{owner.client_id}:{owner.subscription_name}"
        page = term.page(owner.id)
        assert page.is_end
        if page.messages:
            found[name] = [paged.message.message_id for paged in page.messages]
    return found


def held_there(lines: list[Owner]) -> dict[str, list[str]]:
    found = {}
    for line in lines:
        if line.get("messages"):
            name = line["destination"].partition("://")[2]
            if line["owner"] == "subscription":
                name = f"{line['clientId']}:{line['name']}"
            found[name] = [message["id"] for message in line["messages"]]
    return found


def test_a_directory_of_ours_opens_in_activemq_with_all_that_it_holds(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    settings = StoreSettings(journal_max_file_length=64 * 1024, checkpoint_records=40, fence_check_interval=0.01)
    first = Term(str(directory), settings=settings)
    owner = first.store.queue(Q)
    subscription = first.store.subscription("c", "s", T)
    first.store.append(AddSubscription(subscription, encode_subscription(T, "c", "s")))
    added = first.add_durably(200, body=b"x" * 600)
    for operation in added[:150]:
        first.remove(operation, owner)
    transaction = LocalTransactionId("ID:c", 1)
    message = first.message(body=b"in a transaction")
    payload = encode_add(message, encode_message(message), transaction)
    first.store.append(Atomic([AddMessage(message, (owner,), payload)], encode_commit(transaction)))
    text = Message(
        Q, "ID:x:1:1:1", "Grüße".encode(), BodyKind.TEXT, persistent=True, properties={"colour": "blue"}, timestamp=1
    )
    first.store.append(AddMessage(text, (owner,), encode_add(text, encode_message(text))))
    topical = [first.add(T, owners=(subscription,)) for _ in range(5)]
    first.wait(lambda: topical[-1] in first.durable_operations)
    first.crash()
    second = Term(str(directory), "b", settings=settings)  # an epoch more, with its header and ends
    second.add_durably(3)
    mine = held_here(second)
    mine[Q.name] += [o.message.message_id for o in second.durable_operations if isinstance(o, AddMessage)]
    mine[Q.name] = list(dict.fromkeys(mine[Q.name]))
    second.close()
    lines = activemq("dump", directory)
    assert held_there(lines) == mine
    queue = next(line for line in lines if line["destination"] == f"queue://{Q.name}")
    found = next(m for m in queue["messages"] if m["id"] == "ID:x:1:1:1")
    assert found["body"] == "Grüße"
    assert found["properties"]["colour"] == ["string", "blue"]
