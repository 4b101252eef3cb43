"""Names of durable subscriptions that gather for a client of MQTT, as ActiveMQ gives them. Pure.

    AT_LEAST_ONCE:sport/+        EXACTLY_ONCE:sport/#

The QoS is that of the first SUBSCRIBE. By these names the broker finds subscriptions that ActiveMQ made, and ActiveMQ
finds those that are made here: a client may come back to either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tandemmq.broker.protocols.mqtt.reasons import MqttError
from tandemmq.broker.protocols.mqtt.topics import SHARE, check_filter

_NAMES: Final = {1: "AT_LEAST_ONCE", 2: "EXACTLY_ONCE"}
_QOS: Final = {name: qos for qos, name in _NAMES.items()}


def durable_name(qos: int, topic_filter: str) -> str:
    """Return the name of a subscription of QoS 1 or 2."""
    return f"{_NAMES[qos]}:{topic_filter}"


def gathering(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return the names of MQTT among those of a client id: name and QoS by topic filter. A filter that has two, which
    ActiveMQ allows, is given with the higher QoS; the other one is not for MQTT any more."""
    found: dict[str, tuple[str, int]] = {}
    for name in names:
        qos_name, _, topic_filter = name.partition(":")
        qos = _QOS.get(qos_name)
        if qos is None or topic_filter.startswith(SHARE):
            continue
        try:
            check_filter(topic_filter)
        except MqttError:
            continue
        if topic_filter not in found or found[topic_filter][1] < qos:
            found[topic_filter] = name, qos
    return found
