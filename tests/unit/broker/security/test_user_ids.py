"""JMSXUserID is what the broker knows of who sent a message, never what a client says of himself."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.commands import Send
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.settings.engine import engine_settings
from tandemmq.config.load import load
from tandemmq.store.records.frames import open_message
from tandemmq.store.records.message import Message
from tandemmq.store.records.openwire import encode_message
from tests.unit.broker.engine.conftest import ORDERS
from tests.unit.broker.security.test_connection_ids import Secured


def opened(message: Message) -> Message:
    """As it comes from a JMS client."""
    return open_message(encode_message(message))


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("transaction", [None, "t"])
@pytest.mark.parametrize(("is_populated", "expected"), [(False, None), (True, "bob")])
@pytest.mark.parametrize("wanted", [None, "ann"])
def test_nobody_sends_in_the_name_of_another(
    wanted: str | None, is_populated: bool, expected: str | None, transaction: str | None, is_opened: bool
) -> None:
    harness = Secured(EngineSettings(populate_jmsx_user_id=is_populated))
    ann: Any = harness.user("ann", "ID:ann:1")
    ann.subscribe("s", ORDERS)
    bob: Any = harness.user("bob", "ID:bob:1")
    message = bob.message("x", ORDERS, user_id=wanted, persistent=True)
    if transaction:
        bob.begin(transaction)
    bob.handle(Send(opened(message) if is_opened else message, transaction))
    if transaction:
        bob.commit(transaction)
    harness.turn()
    (delivered,) = ann.session.delivered
    assert delivered.message.user_id == expected
    assert open_message(encode_message(delivered.message)).user_id == expected


def test_the_setting_reaches_the_engine() -> None:
    assert not engine_settings(load(None, {})).populate_jmsx_user_id
    assert engine_settings(load(None, {}, ["broker.populate_jmsx_user_id=true"])).populate_jmsx_user_id
