"""Selectors: their results for messages, and refusals."""

# proves: a-long-text-is-no-number

from __future__ import annotations

import sys
from typing import Any

import pytest

from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.selector import Selector, compile_selector
from tandemmq.broker.core.selector.building import CONDITIONS_MAX, Built
from tandemmq.broker.core.selector.comparing import Rules
from tandemmq.broker.core.selector.headers import HEADERS
from tandemmq.broker.core.selector.values import NUMBER_CHARACTERS_MAX
from tandemmq.store.records.altered import altered
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.frames import QUICK_PROPERTIES_MAX, open_message
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.properties import Byte, Float, Long, Short
from tandemmq.store.records.utf import QUICK_BYTES_MAX, QUICK_SURROGATES_MAX
from tests.support.compiled import REPLACES_A_METHOD

pytestmark = pytest.mark.promise("selectors")

QUEUE = Destination(DestinationKind.QUEUE, "Q")


def test_a_selector_with_an_error_of_the_broker_matches_nothing() -> None:
    """Others wait in the same queue."""

    def evaluate(message: Message) -> bool:
        raise RecursionError

    selector = Selector("a = 1", Rules(False, False), Built(evaluate, None, 1, 0))
    assert not selector.matches(Message(QUEUE, "ID:a:1:1:1", b""))


# Results of ActiveMQ 5.17.2 for this message (None: it refuses the selector).
BLUE: dict[str, Any] = {"color": "blue", "n": 5, "s5": "5", "b": True}
MEASURED: list[tuple[str, bool | None]] = [
    ("color <> 'red'", True), ("NOT color = 'red'", False), ("s5 = 5", False),
    ("convert_string_expressions:s5 = 5", True), ("missing = 1", False), ("NOT (missing = 1)", False),
    ("missing IS NULL", True), ("n / 2 = 2.5", True), ("n BETWEEN 1 AND 5", True), ("color IN ('red','blue')", True),
    ("n IN (1,5)", None), ("color > 'a'", None), ("color = NULL", None), ("a.b = 1", None), ("n == 5", None),
    ("n != 4", None), ('color = "blue"', None), ("a-b = 1", False), ("b", True), ("b = TRUE", True), ("TRUE", True),
    ("1 = 1", True), ("NOT b", False), ("0x10 = 16", True), ("010 = 8", True), ("5L = n", True),
    ("'a'+'b' = 'ab'", True), ("REGEX('^b', color)", True), ("JMSDeliveryMode = 'PERSISTENT'", True),
    ("JMSPriority = 4", True), ("n <> 'x'", True), ("color LIKE 'b_u%'", True),
]  # fmt: skip
# JMS requires the opposite, and this broker does the same unless Classic's rules are set.
JMS_DIFFERS = {"NOT color = 'red'": True, "n <> 'x'": False}


def message(properties: dict[str, Any] | None = None, **fields: Any) -> Message:
    return Message(QUEUE, "ID:a-1:1:1:1", properties=properties, **fields)


def says(text: str, properties: dict[str, Any] | None = None, *, is_classic: bool = False, **fields: Any) -> bool:
    return compile_selector(text, is_classic=is_classic).matches(message(properties, **fields))


def refused(text: str) -> str:
    with pytest.raises(ClientError) as caught:
        compile_selector(text)
    assert caught.value.kind is ErrorKind.SELECTOR
    assert not caught.value.is_fatal
    return caught.value.message


@pytest.mark.parametrize(("text", "expected"), MEASURED)
def test_as_classic_does(text: str, expected: bool | None) -> None:
    if expected is None:
        refused(text)
        return
    assert says(text, BLUE, is_classic=True, persistent=True) is expected
    assert says(text, BLUE, persistent=True) is JMS_DIFFERS.get(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # NULL: unknown, unless it decides nothing
        ("missing = other", False), ("NOT missing = other", False), ("color <> missing", False),
        ("missing = 1 OR b", True), ("missing = 1 AND b", False), ("NOT (missing = 1 AND NOT b)", True),
        ("(missing = 1) IS NULL", True), ("(n = 5) IS NOT NULL", True), ("NULL", False), ("NULL IS NULL", True),
        ("missing BETWEEN 1 AND 2", False), ("n BETWEEN 6 AND missing", False), ("NOT (n BETWEEN 6 AND missing)", True),
        ("n NOT BETWEEN 6 AND 9", True), ("missing NOT IN ('a')", False), ("missing NOT LIKE 'a'", False),
        # kinds
        ("b = 1", False), ("b <> 1", False), ("color > n", False), ("color = 'blue' AND (n + 1) * 2 = 12", True),
        ("n IN ('5')", False), ("n NOT IN ('5')", False), ("n LIKE '5'", False), ("n NOT LIKE '5'", True),
        ("color", False), ("NOT color", True), ("color > s5", True),
        # precedence
        ("NOT n = 4 AND n = 5", True), ("NOT (n = 4 OR n = 5)", False), ("n = 5 OR n = 4 AND n = 3", True),
        ("1 + 2 * 3 = 7", True), ("- n + 10 = 5", True), ("n - 2 - 1 = 2", True), ("1 < n = b", True),
        # arithmetic
        ("n % 3 = 2", True), ("-n % 3 = -2", True), ("n / 0 > 1000000", True), ("-n / 0 < -1000000", True),
        ("0 / 0 = 0 / 0", False), ("n % 0 IS NULL", False), ("2147483647 + 1 = -2147483648", True),
        ("2147483648 - 1 = 2147483647", True), ("9223372036854775807 + 1 = -9223372036854775808", True),
        ("n * 1.5 = 7.5", True), ("color - 1 = 0", False), ("(color - 1) IS NULL", True), ("b + 1 = 2", False),
        ("'a' + n + 2.50 + b = 'a52.5true'", True), ("'' + 10000000.0 + 1e-5 = '1.0E71.0E-5'", True),
        ("'' + 0.001 + 123.25 = '0.001123.25'", True),
        # literals and comments
        ("'it''s' = 'it''s'", True), (".5 = 5e-1 AND 5. = 5", True), ("0XfF = 255 and 0 = 00", True),
        ("n /* five * */ = -- five\n 5", True), ("n--5 = 10", True), ("color = 'blue' aNd Not n iS nUlL", True),
        ("notable IS NULL AND $a_1 IS NULL", True),
        # LIKE
        ("color LIKE '%'", True), ("color LIKE 'b%e'", True), ("color LIKE 'b%l%u%e'", True),
        ("color LIKE '%blue%' AND color LIKE '____'", True), ("color LIKE 'blu'", False),
        ("color LIKE 'bl%lue'", False), ("color LIKE 'b\\_ue' ESCAPE '\\'", False),
        ("'b_%\\\\x' LIKE 'b\\_\\%\\\\\\x' ESCAPE '\\'", True),  # an escape with nothing to escape is plain
        ("color NOT LIKE 'r%'", True), ("color LIKE '.*'", False),
    ],
)  # fmt: skip
def test_a_selector_has_the_expected_result(text: str, expected: bool) -> None:
    assert says(text, BLUE) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NOT b = FALSE", True), ("n = NOT b", False),
        ("NOT n IS NULL", False),  # (NOT n) is false, not NULL: so IS NULL is false
        ("missing = other", True), ("color <> missing", True), ("missing <> color", False),
    ],
)  # fmt: skip
def test_a_selector_has_the_result_of_classic(text: str, expected: bool) -> None:
    assert says(text, BLUE, is_classic=True) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s = 5", True), ("5 = s", True), ("s <> 5", False), ("s > 4", True), ("s BETWEEN 4 AND 6", True),
        ("s + 1 = '51'", True), ("s = 5.0", True), ("d = 2.5", True), ("d = 2", False), ("d <> 2", False),
        ("t = TRUE", True), ("TRUE = t", True), ("s = TRUE", False), ("word = 1", False), ("word > 1", False),
        ("big = 5", False), ("big > 3000000000", True), ("l = '7'", True), ("f = ' 2.5f '", True), ("y = '300'", False),
        ("y = '100'", True), ("underscored = 10", False), ("digits = 5.5", False), ("digits < 5.5", False),
        ("digits > 5.5", True), ("digit = 5.5", False), ("digit > 5.5", False), ("digit <> TRUE", True),
    ],
)  # fmt: skip
def test_texts_are_converted_on_request(text: str, expected: bool) -> None:
    properties = {
        "s": "5",
        "d": "2.5",
        "t": "True",
        "word": "abc",
        "big": "5000000000",
        "l": Long(7),
        "f": Float(2.5),
        "y": Byte(100),
        "underscored": "1_0",
        "digits": "1" * NUMBER_CHARACTERS_MAX,
        "digit": "1" * (NUMBER_CHARACTERS_MAX + 1),
    }
    assert says(f"convert_string_expressions:{text}", properties) is expected


def test_every_type_of_number_compares_with_every_other() -> None:
    numbers = {"a": Byte(3), "b": Short(3), "c": 3, "d": Long(3), "e": Float(3.0), "f": 3.0}
    for one in numbers:
        for other in numbers:
            assert says(
                f"{one} = {other} AND {one} >= {other} AND NOT {one} <> {other} AND NOT {one} < {other}", numbers
            )
            assert says(f"{one} + {other} = 6 AND {one} * {other} = 9 AND {one} / {other} = 1", numbers)
        assert says(f"-{one} = -3 AND +{one} = 3 AND {one} % 2 = 1 AND {one} > 2", numbers)
    assert says("d + 2147483647 = 2147483650", numbers)  # a Long stays long
    assert says("c + 2147483647 = -2147483646", numbers)


@pytest.mark.parametrize(
    "text",
    [
        "JMSDestination = 'queue://Q'", "JMSReplyTo = 'temp-queue://ID:x'", "JMSType = 'kind'",
        "JMSDeliveryMode = 'NON_PERSISTENT'", "JMSPriority = 7", "JMSMessageID = 'ID:a-1:1:1:1'",
        "JMS_TandemMQ_MessageID = 'ID:a-1:1:1:1'",
        "JMSTimestamp = 1700000000000", "JMSCorrelationID = 'c'",
        "JMSExpiration = 1800000000000 AND JMSExpiration - JMSTimestamp = 100000000000",
        "JMSRedelivered = TRUE AND JMSRedelivered", "JMSXDeliveryCount = 3", "JMSXGroupID = 'g'", "JMSXGroupSeq = 2",
        "JMSXUserID = 'me'", "JMSXProducerTXID IS NULL", "JMSXGroupFirstForConsumer = FALSE",
        "JMSActiveMQBrokerOutTime = 0", "JMSActiveMQBrokerPath = 'null'",
    ],
)  # fmt: skip
def test_the_header(text: str) -> None:
    given = message(
        {"JMSType": "not this one"},
        reply_to=Destination(DestinationKind.TEMP_QUEUE, "ID:x"),
        type="kind",
        priority=7,
        timestamp=1700000000000,
        correlation_id="c",
        expiration=1800000000000,
        redelivery_counter=2,
        group_id="g",
        group_sequence=2,
        user_id="me",
    )
    assert compile_selector(text).matches(given)


def test_a_header_alone_as_a_selector() -> None:
    assert says("JMSReplyTo IS NULL AND JMSXUserID IS NULL AND JMSXGroupID IS NULL AND JMSType IS NULL")
    assert says("JMSXUserID = 'x'", {"JMSXUserID": "x"})
    assert says("JMSDestination = 'topic://T'", original_destination=Destination(DestinationKind.TOPIC, "T"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INLIST(SPLIT(list, ','), 'b')", True), ("INLIST(SPLIT(list, ','), 'd')", False),
        ("NOT INLIST(MAKELIST('a', 5, TRUE), n)", False), ("INLIST(MAKELIST(), n)", False),
        ("INLIST(MAKELIST(NULL), missing)", False), ("INLIST(list, 'a')", False),
        ("INLIST(MAKELIST(-5, +n, NOT b), n)", True), ("REPLACE(list, '[ab]', 'x') = 'x,x,c'", True),
        ("REPLACE(list, 'b*', '-') = '-a-,--,-c-'", True), ("REPLACE(list, ',', '\\$') = 'a$b$c'", True),
        ("REPLACE(missing, ',', '') IS NULL", True), ("REGEX('B', list)", False), ("REGEX('(?i)B', list)", True),
        ("REGEX('^\\d$', n)", True), ("REGEX('x', missing)", False), ("MAKELIST('a', 'b') = SPLIT('a,b', ',')", True),
        ("MAKELIST('a', 'b,c') = SPLIT(list, ',', 2)", True), ("MAKELIST('a', 'b') = SPLIT('a,b,,', ',')", True),
        ("MAKELIST('a', 'b', '', '') = SPLIT('a,b,,', ',', 9)", True), ("MAKELIST('', 'a') = SPLIT(',a', ',')", True),
        ("MAKELIST('a', 'b') = SPLIT('ab', '')", True), ("MAKELIST('ab') = SPLIT('ab', ',')", True),
        ("'' + MAKELIST('a', 1, NULL) = '[a, 1, null]'", True),
    ],
)  # fmt: skip
def test_functions(text: str, expected: bool) -> None:
    assert says(text, {"list": "a,b,c", "n": 5, "b": True}) is expected


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", 1, "a value"), ("n = ", 5, "a value"), ("n = 5 m", 7, "the end"), ("n = 5)", 6, "the end"),
        ("(n = 5", 7, ")"), ("n LIKE 5", 8, "a text in single quotes"), ("n IN ()", 7, "a text in single quotes"),
        ("n IN ('a' 'b')", 11, ") or ,"), ("n IS 5", 6, "NOT or NULL"),
        ("convert_string_expressions:n = ", 32, "a value"), ("n ? 5", 3, "'?'"), ("n = 'abc", 5, "no end"),
        ("n != 5", 3, "<>"), ('n = "a"', 5, "single quotes"), ("5", 1, "condition"), ("n + 1", 1, "condition"),
        ("b AND 'a'", 7, "condition"), ("NOT 5", 5, "condition"), ("n = NULL", 5, "IS NULL"),
        ("TRUE = 5", 8, "truth value"), ("n > TRUE", 5, "no order"), ("n > 'a'", 5, "no order"),
        ("n < 5 < 6", 1, "no order"), ("'a' IN ('a')", 1, "property"), ("n LIKE 'a' ESCAPE 'ab'", 19, "ESCAPE"),
        ("n = 9223372036854775809", 5, "64 bits"), ("n = 0x8000000000000000", 5, "64 bits"), ("n = 09", 6, "expected"),
        ("XPATH '//a'", 7, "XPATH"), ("LOWER(n) = 'a'", 1, "INLIST, MAKELIST, REGEX, REPLACE, SPLIT"),
        ("REGEX('a')", 1, "1 arguments"), ("REGEX(n, 'a')", 7, "single quotes"), ("REGEX('a++', n)", 7, "possessive"),
        ("REGEX('(?=a)', n)", 7, "special group"), ("REGEX('\\1', n)", 7, "not supported"),
        ("REPLACE(n, 'a', '$1') = 'a'", 17, "$"), ("SPLIT(n, 'a', 1.5) IS NULL", 15, "whole number"),
        ("a = NOT b", 5, "a value"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(text: str, where: int, what: str) -> None:
    told = refused(text)
    assert told.endswith(f", at character {where}")
    assert what in told


def test_a_mistake_is_told_again_and_anew() -> None:
    caught = []
    for _ in range(2):
        with pytest.raises(ClientError) as info:
            compile_selector("a ==")
        caught.append(info.value)
    assert caught[0].message == caught[1].message
    assert caught[0] is not caught[1]


# ---- bounds


def test_a_long_selector_is_refused_by_its_length() -> None:
    assert "the maximum is 65536" in refused("b" + " " * 65536)
    assert says("b" + " " * 65535, BLUE)


def test_deep_selectors_are_compiled_or_refused_but_break_nothing() -> None:
    assert says("(" * ROW + "b" + ")" * ROW, BLUE)
    assert says("NOT " * 198 + "b", BLUE)
    assert "200 operators" in refused("NOT " * ROW + "b")
    assert "200 operators" in refused("- " * ROW + "1 = 1")
    assert "200 operators" in refused("1" + "+1" * ROW + " = 1")
    assert "200 operators" in refused("INLIST(" * ROW + "a" + ",'a')" * ROW)


ROW = sys.getrecursionlimit() + 100


def test_many_conditions_in_a_row_are_fine() -> None:
    assert says(" OR ".join(["n = 4"] * ROW + ["n = 5"]), BLUE)
    assert says(" AND ".join(["n = 5"] * ROW), BLUE)
    assert says(f"color IN ({', '.join(repr(str(each)) for each in range(2 * ROW))}, 'blue')", BLUE)


def test_more_conditions_than_an_evaluation_has_time_for_are_refused() -> None:
    rest = CONDITIONS_MAX // 2 - 2
    assert says(" OR ".join(["n = 5", *["n = 4"] * rest]), BLUE)
    assert f"more than {CONDITIONS_MAX} comparisons" in refused(" OR ".join(["n = 4"] * (rest + 4)))
    assert f"more than {CONDITIONS_MAX} comparisons" in refused(f"INLIST(MAKELIST({'1,' * CONDITIONS_MAX}1), n)")


@pytest.mark.parametrize(
    "selector",
    [
        " OR ".join(["a = b"] * 900),
        " OR ".join(["a > b"] * 900),
        f"{'+'.join(['a'] * 150)} = 'x'",
        f"a LIKE '%{'x_' * 300}y%'",
        " OR ".join(["a LIKE '%xyz%'"] * 1900),
        "REGEX('y', a)",
        "REPLACE(a, 'x', '') = 'b'",
        "INLIST(SPLIT(a, 'x'), 'y')",
    ],
)
def test_an_evaluation_that_takes_too_long_is_no_match(selector: str) -> None:
    compiled = compile_selector(f"NOT ({selector})")
    long = "x" * 500_000
    for text, expected in (("x", True), (long, False), ("x", True)):  # each message has its own effort
        # two texts that are equal, and not the same object
        assert compiled.matches(Message(QUEUE, "ID:1", properties={"a": text + "a", "b": f"{text}b"})) is expected


LONG = "x" * 60_000
MAPS = {str(each): [1.5, "x"] for each in range(300)}


@pytest.mark.parametrize(
    ("selector", "a", "b"),
    [
        (" OR ".join(["a = b"] * 900), [1] * 900 + [2], [1] * 900 + [3]),
        (" OR ".join(["a <> a"] * 900), MAPS, None),
        (" OR ".join(["a < b"] * 1_900), "\u4e00" * 5_000 + "b", "\u4e00" * 5_000 + "a"),
        (" OR ".join(["b + a = 'x'"] * 500), 5e200, "x"),
        (" OR ".join(["b + a = 'x'"] * 500), MAPS, "x"),
        (" OR ".join(["b + a = 'x'"] * 500), b"\xff" * 2_000, "x"),
        (f"INLIST(MAKELIST({', '.join(['a'] * 1_000)}), b)", LONG + "y", LONG + "z"),
        (f"NOT REGEX('x', MAKELIST({', '.join(['a'] * 300)}))", LONG, None),
        (f"a LIKE '{'%a' * 5_000}b'", "a", None),
    ],
)
def test_work_that_grows_with_a_value_is_counted(selector: str, a: Any, b: Any) -> None:
    """No value that a client sends makes an evaluation long: the evaluation is given up."""
    assert not says(f"NOT ({selector})", {"a": a, "b": b})


def test_the_text_of_a_destination_is_made_once_for_all_conditions() -> None:
    """A client may give JMSReplyTo any length."""

    replies = message(reply_to=Destination(DestinationKind.QUEUE, "R"))
    text = HEADERS["JMSReplyTo"](replies)
    assert text == "queue://R"
    assert HEADERS["JMSReplyTo"](replies) is text


def test_the_product_of_texts_is_bounded() -> None:
    joined = f"({'+'.join(['t'] * 10)}) IS NOT NULL"
    assert says(joined, {"t": "x" * 100_000})
    assert not says(joined, {"t": "\U0001f600" * 100_000}), "each takes four bytes, and the time of four"
    text = {"t": "x" * 100_000}
    assert says("(t + t) IS NOT NULL", text)
    assert says(f"({' + '.join(['t'] * 11)}) IS NULL", text)
    assert says(f"REPLACE(t, 'x', '{'y' * 20_000}') IS NULL", {"t": "x" * 100})


def test_as_many_regular_expressions_as_are_allowed() -> None:
    assert says(" AND ".join(["REGEX('b', color)"] * 10), BLUE)
    assert "10 regular expressions" in refused(" AND ".join(["REGEX('b', color)"] * 11))


def test_like_patterns_that_cost_much_are_bounded_together() -> None:
    assert says(f"color NOT LIKE '{'_' * 2000}' AND color NOT LIKE '{'%a' * 2000}'", BLUE)
    assert says(" OR ".join(["color LIKE '%_ue'"] * 170), BLUE)
    assert "1024 characters" in refused(" OR ".join(["color LIKE '%_ue'"] * 200))
    assert says(f"long NOT LIKE '{'%a' * 30}%b'", {"long": "a" * 30_000}), "no way is tried twice"


# ---- Selector


def test_equal_texts_make_equal_selectors() -> None:
    long = "n = 5" + " " * 2000
    for text in ("n = 5", long):
        assert compile_selector(text) == compile_selector(text)
        assert hash(compile_selector(text)) == hash(compile_selector(text))
    assert compile_selector("n = 5") is compile_selector("n = 5")
    assert compile_selector("n = 5") != compile_selector("n = 6")
    assert compile_selector("n = 5") != compile_selector("n = 5", is_classic=True)
    assert compile_selector("n = 5") != "n = 5"
    assert compile_selector("n = 5").text == "n = 5"
    assert isinstance(compile_selector("n = 5"), Selector)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ({f"p{number}": number for number in range(QUICK_PROPERTIES_MAX - 1)}, True),
        ({f"p{number}": number for number in range(QUICK_PROPERTIES_MAX)}, False),
        ({"list": [None] * 1_500}, False),
        ({"map": {"in": {f"p{number}": [1.5, "x"] for number in range(QUICK_PROPERTIES_MAX // 2)}}}, False),
        ({"long": "x" * 9_000, "map": {"list": [b"x" * 5_000, "x", 1, None, True]}}, True),
        ({"long": "x" * (QUICK_BYTES_MAX + 1)}, False),
        ({"faces": ["\U0001f600" * 50] * (QUICK_SURROGATES_MAX // 100)}, True),
    ],
    ids=["most", "more", "list", "map", "few", "long", "faces"],
)
def test_properties_that_take_long_to_decode_match_nothing(rest: dict[str, Any], expected: bool) -> None:
    """A message of 100 MB has millions of them, and the loop would stand still for a minute."""
    message = open_message(encode_message(Message(QUEUE, "ID:1", priority=4, properties={"n": 5, **rest})))
    for each in (message, altered(message, destination=Destination(DestinationKind.QUEUE, "R"))):
        assert compile_selector("n = 5").matches(each) is expected
        assert compile_selector("JMSPriority = 4").matches(each)
        assert (each.properties or {})["n"] == 5, "others still get them"


@REPLACES_A_METHOD
def test_properties_are_touched_only_when_one_is_named() -> None:
    class Lazy(Message):
        """A message that records each access to its properties."""

        @property
        def quick_properties(self) -> dict[str, Any]:
            raise RecordDamaged("the properties are truncated")

    lazy = Lazy(QUEUE, "ID:1", priority=4)
    assert compile_selector("JMSPriority = 4 AND JMSType IS NULL").matches(lazy)
    assert compile_selector("JMSPriority = 4 OR n = 5").matches(lazy)
    assert not compile_selector("n = 5 OR TRUE").matches(lazy)  # damaged: no selector matches
