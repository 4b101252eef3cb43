"""[[virtual_destinations]]: what they may say, what is refused, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.broker.settings.virtual_destinations import virtual_destinations
from tandemmq.config.errors import SettingsError
from tandemmq.config.settings import Settings
from tandemmq.config.show import show
from tandemmq.store.records.message import Destination, DestinationKind

Read = Callable[[str], Settings]
QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC


EVERYTHING = """
[[virtual_destinations]]
composite_queue = "A.>"
forward_only = false
send_when_not_matched = true
forward_to = [{queue = "B", selector = "colour = 'red'"}, {topic = "C"}]
[[virtual_destinations]]
composite_topic = "A.>"
[[virtual_destinations.forward_to]]
queue = "B"
[[virtual_destinations]]
mirrored_queue = "M"
postfix = ".mirror"
[[virtual_destinations]]
virtual_topic = ">"
prefix = "Queues.*."
selector_aware = true
"""


def test_every_table_becomes_what_it_says(read: Read) -> None:
    settings = read(EVERYTHING)
    assert read(show(settings)).virtual_destinations == settings.virtual_destinations
    virtual = virtual_destinations(settings.virtual_destinations)
    composite, _, _ = virtual.of(Destination(QUEUE, "A.1"))
    assert composite is not None
    assert (composite.forward_only, composite.send_when_not_matched) == (False, True)
    assert [each.destination for each in composite.forward_to] == [Destination(QUEUE, "B"), Destination(TOPIC, "C")]
    selectors = [None if each.selector is None else each.selector.text for each in composite.forward_to]
    assert selectors == ["colour = 'red'", None]
    composite, _, is_virtual = virtual.of(Destination(TOPIC, "A.1"))
    assert composite is not None
    assert is_virtual
    _, mirrored, _ = virtual.of(Destination(QUEUE, "M"))
    assert mirrored is not None
    assert mirrored.topic("M").name == "VirtualTopic.Mirror.M.mirror"
    (rule,) = virtual.virtual_topics
    assert (rule.pattern, rule.prefix, rule.postfix, rule.is_selector_aware) == (">", "Queues.*.", "", True)


def test_without_a_table_topics_are_virtual_as_in_activemq(read: Read) -> None:
    (rule,) = virtual_destinations(read("").virtual_destinations).virtual_topics
    assert (rule.pattern, rule.prefix, rule.postfix, rule.is_selector_aware) == (
        "VirtualTopic.>", "Consumer.*.", "", False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("", "one of composite_queue, composite_topic, mirrored_queue and virtual_topic"),
        ('composite_queue = "A"', "forward_to, of composite destinations"),
        ('mirrored_queue = "A"\nforward_to = [{queue = "B"}]', "forward_to, of composite destinations"),
        ('composite_queue = "A"\nforward_to = [{queue = "B", topic = "C"}]', "one of queue and topic"),
        ('composite_queue = "A"\nforward_to = [{queue = "B.>"}]', "the name of one destination"),
        ('mirrored_queue = "A"\nprefix = "*."', "of one topic"),
        ('virtual_topic = "A"\nprefix = ""', "a destination is not its own copy"),
        ('virtual_topic = "A"\n[[virtual_destinations]]\nvirtual_topic = "A"', "stands twice"),
    ],
)
def test_what_means_nothing_is_refused_by_its_name(read: Read, table: str, told: str) -> None:
    with pytest.raises(SettingsError, match="virtual_destinations") as refused:
        read(f"[[virtual_destinations]]\n{table}\n")
    assert told in str(refused.value)


def test_a_selector_that_is_none_is_refused_by_its_key(read: Read) -> None:
    settings = read('[[virtual_destinations]]\ncomposite_queue = "A"\nforward_to = [{queue = "B", selector = "a ="}]')
    with pytest.raises(SettingsError) as refused:
        virtual_destinations(settings.virtual_destinations)
    assert str(refused.value).startswith("virtual_destinations[0].forward_to[0].selector")
