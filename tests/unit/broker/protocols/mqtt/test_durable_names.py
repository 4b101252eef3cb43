"""Names of durable subscriptions, as ActiveMQ gives them."""

from __future__ import annotations

import pytest

from tandemmq.broker.protocols.mqtt.durable_names import durable_name, gathering


@pytest.mark.parametrize("topic_filter", ["a", "a/+/b", "#", "a:b", "a b"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_name_tells_its_filter_and_its_qos(topic_filter: str, qos: int) -> None:
    name = durable_name(qos, topic_filter)
    assert gathering([name]) == {topic_filter: (name, qos)}


def test_names_as_activemq_gives_them() -> None:
    assert (durable_name(1, "a/b"), durable_name(2, "a/#")) == ("AT_LEAST_ONCE:a/b", "EXACTLY_ONCE:a/#")


@pytest.mark.parametrize(
    "name", ["", "mine", "AT_LEAST_ONCE", "AT_LEAST_ONCE:", "AT_MOST_ONCE:a", "AT_LEAST_ONCE:a/#/b", "EXACTLY_ONCE:a+"]
)
def test_other_names_are_of_other_clients(name: str) -> None:
    assert gathering([name]) == {}


def test_of_two_for_one_filter_the_higher_qos_counts() -> None:
    names = ["AT_LEAST_ONCE:a", "EXACTLY_ONCE:a"]
    assert gathering(names) == gathering(names[::-1]) == {"a": ("EXACTLY_ONCE:a", 2)}
