"""Selectors, wildcards and composite names, against ActiveMQ's own SelectorParser and DestinationFilter.

Thousands of generated selectors are put to both. Where ActiveMQ fails on a message (an exception) nothing is compared.
The generator stays away from what docs/selectors.md lists as different in Classic's mode: zero with a sign, NaN, a
Float that is no Double, and a Byte or Short at the right of what is wider.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.names import Pattern, split
from tandemmq.broker.core.selector import compile_selector
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.properties import Byte, Float, Long, Short
from tests.support.interop.java_programs import program

pytestmark = [pytest.mark.service, pytest.mark.promise("selectors")]

SELECTORS = 2000
SEEDS = (1, 2)

Ask = Callable[[Sequence[dict[str, Any]]], list[Any]]

_MAKE: dict[str, Callable[[Any], Any]] = {"byte": Byte, "short": Short, "long": Long, "float": Float}


@pytest.fixture(scope="module")
def ask(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Ask:
    run = program(require_service, tmp_path_factory.mktemp("classes"), "Selectors")

    def answers(requests: Sequence[dict[str, Any]]) -> list[Any]:
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        found = [json.loads(line) for line in run(text=lines).splitlines()]
        assert len(found) == len(requests)
        return found

    return answers


class Writer:
    """Writes selectors, most of them right. Numbers are made so that no zero gets a sign."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def choose(self, *ways: Any) -> Any:
        return self.random.choice(ways)

    def condition(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.3:
            return str(self.choose(self.comparison, self.comparison, self.comparison, self.test, self.odd)())
        one, other = self.condition(depth - 1), self.condition(depth - 1)
        return str(
            self.choose(
                f"{one} AND {other}",
                f"{one} or {other}",
                f"({one}) OR ({other})",
                f"NOT {one}",
                f"NOT ({one})",
                f"({one})",
                f"({one}) = ({other})",
                f"({one}) IS NULL",
            )
        )

    def comparison(self) -> str:
        sign = self.choose("=", "<>", "<", "<=", ">", ">=", "=", "<>")
        if self.random.random() < 0.3:
            return f"{self.text()} {sign} {self.choose(self.text, self.number, self.text)()}"
        left = self.choose(self.number, self.number, self.small)()
        return f"{left} {sign} {self.choose(self.number, self.number, self.number, self.text)()}"

    def test(self) -> str:
        name, no = self.property(), self.choose("", "NOT ")
        return str(
            self.choose(
                f"{self.number()} {no}BETWEEN {self.number()} AND {self.number()}",
                f"{name} {no}IN ('red', {self.quoted()}, '5')",
                f"{name} {no}IN ('a', 'b', 'c', 'd', 'red', 'blue')",
                f"{self.choose(name, self.text())} {no}LIKE {self.pattern()}",
                f"{name} {no}LIKE {self.pattern()} ESCAPE {self.choose(*ESCAPES)}",
                f"{name} IS {no}NULL",
                name,
                self.choose("TRUE", "FALSE", "NULL", "b", "NOT b"),
            )
        )

    def odd(self) -> str:
        """Functions, comments, and what is no selector."""
        return str(
            self.choose(
                f"REGEX({self.choose(*REGEXES)}, {self.property()})",
                f"INLIST(MAKELIST('red', 'x', {self.quoted()}), {self.choose('color', 's5', 'empty')})",
                f"INLIST(SPLIT(list, {self.choose(*SPLITS)}), {self.quoted()})",
                f"REPLACE(list, {self.choose(*SPLITS)}, '-') = {self.choose(*REPLACED)}",
                f"SPLIT(list, {self.choose(*SPLITS)}, {self.choose(0, 1, 2, 3)}) = MAKELIST('a', 'b', 'c')",
                "n /* comment * */ = -- another\n 5",
                f"{self.number()} = {self.number()} = b",
                f"{self.property()} {self.choose('==', '!=', 'IS', 'LIKE', '.')} {self.number()}",
                f"{self.quoted()} IN ('a')",
                f"{self.number()}",
                f"({self.property()} = {self.number()}",
            )
        )

    def property(self) -> str:
        return str(
            self.choose("n", "y", "h", "l", "f", "d", "s5", "color", "list", "empty", "b", "missing", "JMSPriority")
        )

    def quoted(self) -> str:
        return str(self.choose("'red'", "'blue'", "''", "'5'", "'a'", "'it''s'", "'true'"))

    def pattern(self) -> str:
        return "'" + "".join(self.random.choices("bluered%_\\!5.", k=self.random.randrange(5))) + "'"

    def text(self) -> str:
        joined = f"{self.quoted()} + {self.number()}"
        return str(self.choose("color", "s5", "empty", "missing", "JMSDeliveryMode", self.quoted(), joined))

    def positive(self) -> str:
        return str(self.choose("1", "2L", "5", "0x10", "010", "2.5", "1e2", ".5", "3000000000", "2147483647"))

    def small(self) -> str:
        return str(self.choose("y", "h"))

    def number(self, depth: int = 2) -> str:
        if depth == 0 or self.random.random() < 0.5:
            exact = ("n", "l", "n", "s5", "missing", "JMSPriority", "b")
            return str(self.choose(*exact, self.choose("f", "d"), self.positive(), f"-{self.positive()}"))
        one, other = self.number(depth - 1), self.number(depth - 1)
        return str(
            self.choose(
                f"{one} + {other}",
                f"{self.small()} + {other}",
                f"({one} - {self.small()})",
                f"({one} - {other})",
                f"({one}) * {self.positive()}",
                f"{self.choose('n', 'l', 'd', self.positive())} / {self.positive()}",
                f"{self.choose('n', 'l', 'd', self.positive())} % {self.positive()}",
                f"+{one}",
            )
        )


REGEXES = ("'^b'", "'e$'", "'[ab]+l'", "'(?i)RED|BLUE'", "'\\d'", "'^\\w{3,4}$'", "'a*?b'", "'^(a|,|b)*'", "'\\bc\\b'")
ESCAPES = ("'\\'", "'!'", "'%'")
REPLACED = ("list", "'a-b-c'", "'-a-,-c-'")
SPLITS = ("','", "'[,b]+'", "'b*'", "''", "'x'", "'a,?'", "'\\W'")


def message_request(chance: random.Random) -> dict[str, Any]:
    properties = {
        "n": ["int", chance.choice([1, 5, 16, 2147483647])],
        "y": ["byte", chance.choice([3, 5])],
        "h": ["short", chance.choice([-3, 5])],
        "l": ["long", chance.choice([1, 5, 3000000000])],
        # binary fractions: what a float and a double both have
        "f": ["float", chance.choice([0.5, 2.5, 5.0])],
        "d": ["double", chance.choice([0.5, 2.5, 5.0])],
        "s5": ["string", chance.choice(["5", "5.0", "red"])],
        "color": ["string", chance.choice(["red", "blue"])],
        "list": ["string", chance.choice(["a,b,c", "a,,c,", ",a", "abc"])],
        "empty": ["string", ""],
        "b": ["boolean", chance.choice([True, False])],
    }
    return {"properties": properties, "priority": chance.randrange(10), "persistent": chance.choice([True, False])}


def made(request: dict[str, Any]) -> Message:
    properties = {
        name: _MAKE.get(kind, lambda value: value)(value) for name, (kind, value) in request["properties"].items()
    }
    queue = Destination(DestinationKind.QUEUE, "Q")
    return Message(
        queue, "ID:1:1:1:1", properties=properties, priority=request["priority"], persistent=request["persistent"]
    )


def our_word(selector: str, message: Message) -> str:
    try:
        return "true" if compile_selector(selector, is_classic=True).matches(message) else "false"
    except ClientError:
        return "invalid"


@pytest.mark.parametrize("prefix", ["", "convert_string_expressions:"])
@pytest.mark.parametrize("seed", SEEDS)
def test_we_say_what_activemq_says(ask: Ask, seed: int, prefix: str) -> None:
    print(f"seed {seed}")
    writer = Writer(seed)
    requests: list[dict[str, Any]] = []
    ours: list[str] = []
    message = made(message_request(writer.random))
    for n in range(SELECTORS):
        if n % 20 == 0:
            request = message_request(writer.random)
            requests.append(request)
            ours.append("ok")
            message = made(request)
        selector = prefix + writer.condition(3)
        requests.append({"selector": selector})
        ours.append(our_word(selector, message))
    theirs = ask(requests)
    differences = []
    last: dict[str, Any] = {}
    for request, our, their in zip(requests, ours, theirs, strict=True):
        if their == "ok":
            last = request
        elif their not in (our, "fails"):
            differences.append((request["selector"], f"ours {our}, theirs {their}", last))
    assert not differences, f"{len(differences)} differences, the shortest: {min(differences, key=lambda d: len(d[0]))}"
    counts = Counter(theirs)
    assert min(counts["true"], counts["false"], counts["invalid"]) > SELECTORS / 20, counts
    assert counts["fails"] < SELECTORS / 3, counts


def test_patterns_match_what_they_match_in_activemq(ask: Ask) -> None:
    words = ("A", "B", "AB", "")
    names = [f"{one}.{two}.{three}" for one in words for two in words for three in words]
    names += [f"{one}.{two}" for one in words for two in words] + ["A", "B", "A.B.C.D"]
    parts = ("A", "B", "*", ">", "A*")
    patterns = [f"{one}.{two}.{three}" for one in parts for two in parts for three in parts]
    patterns += [f"{one}.{two}" for one in parts for two in parts] + list(parts)
    answers = ask([{"pattern": pattern, "names": names} for pattern in patterns])
    for pattern, theirs in zip(patterns, answers, strict=True):
        ours = Pattern(pattern)
        assert [name for name in names if ours.matches(name)] == theirs, pattern


def test_composite_names_come_apart_as_in_activemq(ask: Ask) -> None:
    chance = random.Random(3)
    pieces = ("A", "B.C", "topic://", "queue://", "temp-queue://", "temp-topic://", ",", ",", " ", "?x=1")
    names = []
    for _ in range(500):
        name = "A" + "".join(chance.choices(pieces, k=chance.randrange(6))) + "Z"
        if not name.rstrip().endswith("://"):
            names.append(name)
    kinds = {
        1: DestinationKind.QUEUE,
        2: DestinationKind.TOPIC,
        5: DestinationKind.TEMP_QUEUE,
        6: DestinationKind.TEMP_TOPIC,
    }
    for number, kind in ((1, DestinationKind.QUEUE), (2, DestinationKind.TOPIC)):
        answers = ask([{"split": name, "type": number} for name in names])
        for name, theirs in zip(names, answers, strict=True):
            expected = {Destination(kinds[each], text) for each, text in theirs}
            try:
                ours = split(Destination(kind, name))
            except ClientError:
                assert not expected, name
                continue
            assert set(ours) == expected, name
            assert len(set(ours)) == len(ours)
