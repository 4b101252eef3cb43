"""The producer audit: its window against a plain set, its image."""

# proves: forgets-the-first-of-a-window
# proves: loaded-bits-keep-their-numbers, nothing-above-the-newest

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemmq.store.records.audit import AuditImage, ProducerAudit
from tandemmq.store.records.message_ids import SEQUENCE_MAX, broker_producer, client_message_id, is_made_by_broker

PRODUCERS = ("ID:a-1-2-0:1:1:1", "ID:a-1-2-0:1:1:2", "ID:b:1:1")

# Where the next message stands: a sequence, or so far behind the producer's highest. Mostly near it, so that the window
# slides by little; sometimes far off.
places = st.one_of(
    st.tuples(st.just("behind"), st.integers(-70, 5)),
    st.tuples(st.just("behind"), st.integers(-30, 300)),
    st.tuples(st.just("at"), st.integers(0, 400)),
    st.tuples(st.just("at"), st.sampled_from([100_000, SEQUENCE_MAX, SEQUENCE_MAX - 1, SEQUENCE_MAX - 500])),
)
verbs = st.sampled_from(["send", "send", "send", "send", "forget", "reload"])
steps = st.lists(st.tuples(verbs, st.sampled_from(PRODUCERS), places), max_size=120)
Step = tuple[str, str, tuple[str, int]]


def sequence_at(place: tuple[str, int], highest: int) -> int:
    kind, number = place
    return min(max(0, highest - number), SEQUENCE_MAX) if kind == "behind" else number


def noted(audit: ProducerAudit, steps: list[Step]) -> None:
    highest = dict.fromkeys(PRODUCERS, 0)
    for _, producer, place in steps:
        sequence = sequence_at(place, highest[producer])
        audit.note(f"{producer}:{sequence}")
        highest[producer] = max(sequence, highest[producer])


def known(audit: ProducerAudit) -> dict[str, set[int]]:
    """The sequences that are remembered. Where a window begins is no part of that: after the highest was forgotten it
    begins further down in an audit that was loaded."""
    return {
        producer: {first + n for n in range(bitmap.bit_length()) if bitmap >> n & 1}
        for producer, (first, bitmap) in audit.image().windows.items()
    }


@given(st.sampled_from([1, 63, 64, 100, 129]), steps)
@example(
    63,
    [
        ("send", PRODUCERS[0], ("at", 100_000)),
        ("send", PRODUCERS[0], ("behind", 33)),
        ("forget", PRODUCERS[0], ("at", 100_000)),
        ("reload", PRODUCERS[0], ("at", 0)),
    ],
)
@example(63, [(verb, PRODUCERS[0], ("at", 64)) for verb in ("send", "forget")])
@example(100, [("send", PRODUCERS[0], ("at", number)) for number in (29, 128, 29)])
def test_a_duplicate_was_seen_and_what_the_window_holds_is_known(depth: int, steps: list[Step]) -> None:
    audit = ProducerAudit(depth, len(PRODUCERS))
    seen: set[tuple[str, int]] = set()
    highest = dict.fromkeys(PRODUCERS, 0)
    for step, producer, place in steps:
        sequence = sequence_at(place, highest[producer])
        id = f"{producer}:{sequence}"
        if step == "send":
            before = audit.image(), audit.revision
            is_duplicate = audit.is_duplicate(id)
            assert (audit.image() == before[0]) is (audit.revision == before[1]), "what changes is counted"
            if is_duplicate:
                assert (producer, sequence) in seen, "a message that was never stored is no duplicate"
            elif (producer, sequence) in seen:
                assert sequence <= highest[producer] - depth, "the last `depth` are remembered"
            seen.add((producer, sequence))
            highest[producer] = max(sequence, highest[producer])
        elif step == "forget":
            audit.forget(id)
            assert sequence not in known(audit).get(producer, ())
            seen.discard((producer, sequence))
        else:
            again = ProducerAudit(depth, len(PRODUCERS))
            again.load(audit.image())
            assert known(again) == known(audit)
            audit = again
    for first, bitmap in audit.image().windows.values():
        assert first % 64 == 0
        assert bitmap.bit_length() <= depth + 128, "memory is bounded"


@given(steps, steps)
def test_an_older_image_takes_nothing_away(earlier: list[Step], later: list[Step]) -> None:
    audit = ProducerAudit(100, len(PRODUCERS))
    noted(audit, earlier)
    older = audit.image()
    noted(audit, later)
    newer, revision = audit.image(), audit.revision
    audit.load(older)
    assert (audit.image().windows, audit.revision) == (newer.windows, revision)
    other = ProducerAudit(100, len(PRODUCERS))
    other.load(older)
    revision = other.revision
    other.load(newer)
    if any(older.windows.get(producer) != window for producer, window in newer.windows.items()):
        assert other.revision > revision
    for producer, (first, bitmap) in newer.windows.items():
        for sequence in (first + n for n in range(bitmap.bit_length()) if bitmap >> n & 1):
            assert other.is_duplicate(f"{producer}:{sequence}")


def test_the_producer_that_was_silent_longest_is_forgotten() -> None:
    audit = ProducerAudit(10, 2)
    audit.note("a:1")
    audit.note("b:1")
    assert audit.is_duplicate("a:1")  # used again
    audit.note("c:1")
    assert len(audit) == 2
    assert [audit.is_duplicate(id) for id in ("a:1", "c:1", "b:1")] == [True, True, False]


def whose(connection_id: str) -> str | None:
    """Return an id of the form ``ID:<user>-…``."""
    return {"a": "ann", "b": "bob", "m": "mallory", "ö": "önn"}.get(connection_id.removeprefix("ID:")[0])


def test_the_newest_number_has_no_higher_one() -> None:
    audit = ProducerAudit(10, 2)
    audit.note("a:5")
    assert [audit.is_newest("a", sequence) for sequence in (4, 5, 6)] == [False, True, True]


def audit_of_users(producers_max: int) -> ProducerAudit:
    audit = ProducerAudit(10, producers_max)
    audit.user_of = whose
    return audit


@pytest.mark.parametrize("is_numbered", [False, True])
def test_a_user_cannot_displace_producers_of_a_user_with_fewer(is_numbered: bool) -> None:
    audit = audit_of_users(8)
    hers = [*(f"ID:a-1:1:{number}:1" for number in range(2)), client_message_id("shop", 1, "ann")]
    for id in hers:
        audit.note(id)
    for number in range(100):
        audit.note(client_message_id(f"m{number}", 1, "mallory") if is_numbered else f"ID:m-1:1:{number}:1")
    assert len(audit) == 8
    assert [audit.is_duplicate(id) for id in hers] == [True] * 3
    bobs = [f"ID:b-1:1:{number}:1" for number in range(2)]
    for id in bobs:
        audit.note(id)
    assert [audit.is_duplicate(id) for id in [*hers, *bobs]] == [True] * 5, "who comes later has his part as well"


def test_of_many_users_the_producer_silent_longest_is_forgotten() -> None:
    audit = ProducerAudit(10, 3)
    ids = [client_message_id("p", 1, f"user{number}") for number in range(4)]
    for id in ids:
        audit.note(id)
    assert [audit.is_duplicate(id) for id in reversed(ids)] == [True, True, True, False]


def test_a_user_has_one_part_by_whatever_protocol_he_comes() -> None:
    audit = audit_of_users(4)
    audit.note(client_message_id("x", 1, "önn"))
    audit.note("ID:ö-1:1:1:1")
    audit.note("ID:ö-1:1:2:1")
    audit.note("ID:a-1:1:1:1")
    audit.note("ID:b-1:1:1:1")
    assert list(audit.image().windows) == ["ID:ö-1:1:1", "ID:ö-1:1:2", "ID:a-1:1:1", "ID:b-1:1:1"]


def test_the_user_of_a_producer_is_determined_again_later() -> None:
    """A replay may meet a message before it learns whose its connection is."""
    audit = audit_of_users(3)
    audit.user_of = lambda connection_id: None
    audit.note("ID:a-1:1:1:1")
    audit.note("ID:m-1:1:1:1")
    audit.note("ID:m-1:1:2:1")
    audit.user_of = whose
    audit.load(AuditImage(10, 3, {}))
    audit.note("ID:m-1:1:3:1")
    assert list(audit.image().windows) == ["ID:a-1:1:1", "ID:m-1:1:2", "ID:m-1:1:3"]


def test_an_image_of_another_size_is_cut_to_the_audits_own_bounds() -> None:
    image = AuditImage(10_000, 100, {f"p{n}": (65, (1 << 9_000) - 1) for n in range(100)})
    audit = ProducerAudit(100, 3)
    audit.load(image)
    assert list(audit.image().windows) == ["p97", "p98", "p99"]
    highest = 65 + 9_000 - 1
    assert all(audit.is_duplicate(f"p99:{highest - n}") for n in range(100))
    assert not audit.is_duplicate(f"p99:{highest + 1}")
    assert audit.image().windows["p99"][1].bit_length() <= 200


@pytest.mark.parametrize(
    "id",
    [
        "",
        "a",
        ":1",
        "a:",
        "a:x",
        "a:-1",
        "a:+1",
        "a:01",
        "a: 1",
        "a:1_0",
        "a:٣",
        f"a:{SEQUENCE_MAX + 1}",
        "a:" + "9" * 5000,
    ],
)
def test_an_id_without_a_sequence_is_never_a_duplicate(id: str) -> None:
    audit = ProducerAudit(10, 2)
    assert [audit.is_duplicate(id), audit.is_duplicate(id)] == [False, False]
    audit.forget(id)
    assert (len(audit), audit.revision) == (0, 0)


def test_an_id_shows_who_made_it() -> None:
    assert is_made_by_broker(f"{broker_producer('ID:node-1-7-3')}:12")
    assert is_made_by_broker("ID:host-61613-1700000000000-3:5:-1:1:7")  # ActiveMQ, for a STOMP client
    assert not is_made_by_broker("ID:host-41231-1700000000000-1:1:1:1:7")  # a JMS client
    assert not is_made_by_broker(client_message_id("loader--1", 7))
