"""JMSXUserID is what the broker knows of who sent a message, never what a client says of himself."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.commands import Send
from broker.core.settings import EngineSettings
from broker.wiring import engine_settings
from config.load import load
from store.records.frames import open_message
from store.records.message import Message
from store.records.openwire import encode_message
from tests.engine.conftest import ORDERS
from tests.security.test_connection_ids import Secured


def opened(message: Message) -> Message:
    """As it comes from a JMS client."""
    return open_message(encode_message(message))


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("transaction", [None, "t"])
@pytest.mark.parametrize(("is_populated", "expected"), [(False, None), (True, "bob")])
@pytest.mark.parametrize("said", [None, "ann"])
def test_nobody_sends_in_the_name_of_another(
    said: str | None, is_populated: bool, expected: str | None, transaction: str | None, is_opened: bool
) -> None:
    house = Secured(EngineSettings(populate_jmsx_user_id=is_populated))
    ann: Any = house.user("ann", "ID:ann:1")
    ann.subscribe("s", ORDERS)
    bob: Any = house.user("bob", "ID:bob:1")
    message = bob.message("x", ORDERS, user_id=said, persistent=True)
    if transaction:
        bob.begin(transaction)
    bob.handle(Send(opened(message) if is_opened else message, transaction))
    if transaction:
        bob.commit(transaction)
    house.turn()
    (delivered,) = ann.session.delivered
    assert delivered.message.user_id == expected
    assert open_message(encode_message(delivered.message)).user_id == expected


def test_the_setting_reaches_the_engine() -> None:
    assert not engine_settings(load(None, {})).populate_jmsx_user_id
    assert engine_settings(load(None, {}, ["broker.populate_jmsx_user_id=true"])).populate_jmsx_user_id
