"""Bridges that a message has passed: a user property, which MQTT 5 carries from broker to broker. A message that comes
to a bridge again goes no further, and so a circle of bridges ends. Pure.

    MQTT.Bridges: 6f1d0c52a9be 03b7e1f4c8d2        ids of bridges, the first one first
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tandemmq.broker.protocols.mqtt.properties import Properties

PASSED: Final = "MQTT.Bridges"
#: A message that has passed this many bridges goes no further.
PASSED_MAX: Final = 32


def is_at_end(text: object, id: str) -> bool:
    """Return whether a message with that property, if any, has passed the bridge ``id`` before, or too many."""
    ids = text.split() if isinstance(text, str) else ()
    return id in ids or len(ids) >= PASSED_MAX


def passed(properties: Properties) -> str:
    """Return the property; "": there is none."""
    return next((value for name, value in properties.user if name == PASSED), "")


def passing(properties: Properties, id: str) -> Properties:
    """Return the properties with the bridge ``id`` added."""
    others = tuple(each for each in properties.user if each[0] != PASSED)
    return replace(properties, user=(*others, (PASSED, f"{passed(properties)} {id}".lstrip())))
