"""Store of a destination: ActiveMQ's patterns, and ActiveMQ's names of directories."""

from __future__ import annotations

import pytest

from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.several.filters import FilteredStore, Filters, FiltersClash, directory_name, matches

# Results of org.apache.activemq.filter.DestinationFilter of 5.17.
PATTERNS = {
    ">": ("A", "A.B", "A.B.C", "B", "X.B", "A.X.C", "A."),
    "A.>": ("A", "A.B", "A.B.C", "A.X.C", "A."),
    "A.*": ("A.B", "A."),
    "*.B": ("A.B", "X.B"),
    "A.B": ("A.B",),
    ">.B": (),
    "A.*.>": ("A.B", "A.B.C", "A.X.C", "A."),
    "A.B.>": ("A.B", "A.B.C"),
    "A.>.C": (),
}
NAMES = ("A", "A.B", "A.B.C", "B", "X.B", "A.X.C", "A.")


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def topic(name: str) -> Destination:
    return Destination(DestinationKind.TOPIC, name)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_as_those_of_activemq(pattern: str) -> None:
    assert tuple(name for name in NAMES if matches(pattern, name)) == PATTERNS[pattern]


# Results of org.apache.activemq.util.IOHelper.toFileSystemSafeName of 5.17.
@pytest.mark.parametrize(
    ("qualified", "directory"),
    [
        ("queue://ORDERS.>", "queue#3a#2f#2fORDERS.#3e"),
        ("topic://P.*.x", "topic#3a#2f#2fP.#2a.x"),
        ("queue://Ä€ \U0001f600_-#", "queue#3a#2f#2f#c4#20ac#20#d83d#de00_-#"),
        ("!0", "#210"),
        ("queue://" + "abcdefghij" * 8, "ghij" + "abcdefghij" * 6),
        ("queue://a/b?c", "queue#3a#2f#2fa#2fb#3fc"),
    ],
)
def test_directories_are_named_as_activemq_names_them(qualified: str, directory: str) -> None:
    assert directory_name(qualified) == directory


def test_the_more_specific_filter_is_taken_whatever_the_order() -> None:
    entries = [
        FilteredStore(),
        FilteredStore(queue=">"),
        FilteredStore(queue="A.>"),
        FilteredStore(queue="A.*"),
        FilteredStore(queue="*.B"),
        FilteredStore(queue="A.B"),
        FilteredStore(queue="A.B.>"),
        FilteredStore(topic="A.B"),
    ]
    expected = {
        queue("A.B"): "A.B",
        queue("A.B.C"): "A.B.>",
        queue("A.C"): "A.*",
        queue("X.B"): "*.B",
        queue("A.C.D"): "A.>",
        queue("A"): "A.>",
        queue("Z"): ">",
    }
    for order in (entries, entries[::-1]):
        filters = Filters(order)
        for destination, pattern in expected.items():
            chosen = filters.choose(destination)
            assert chosen is not None
            assert chosen.queue == pattern, destination
        assert filters.choose(topic("A.B")) == FilteredStore(topic="A.B")
        assert filters.choose(topic("A.C")) == FilteredStore()


def test_without_an_entry_for_all_some_match_nothing() -> None:
    assert Filters([FilteredStore(queue="A.>")]).choose(topic("A.B")) is None


def test_filters_that_would_share_a_directory_are_refused_by_name() -> None:
    long = "X" * 70
    with pytest.raises(FiltersClash, match=f"queue A{long} and queue B{long} would have one directory"):
        Filters([FilteredStore(queue=f"A{long}"), FilteredStore(queue=f"B{long}")])
    with pytest.raises(FiltersClash, match="matches all"):
        Filters([FilteredStore(), FilteredStore()])
    with pytest.raises(FiltersClash, match=r"queue A\.>: per_destination is only"):
        Filters([FilteredStore(queue="A.>", is_per_destination=True)])
    with pytest.raises(FiltersClash, match="use two entries"):
        Filters([FilteredStore(queue="A", topic="B")])
