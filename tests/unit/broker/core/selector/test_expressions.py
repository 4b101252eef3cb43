"""Random selectors, against an evaluator that walks the tree they were written from; and random text."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.selector import compile_selector
from tandemmq.store.records.message import Destination, DestinationKind, Message

pytestmark = pytest.mark.promise("selectors")

Tree = tuple[Any, ...]

# A tree is (operator, parts ...); leaves are ("property", name) and ("constant", value).
_names = st.sampled_from(["i", "f", "s", "t", "b", "c", "none"])
_properties = st.tuples(st.just("property"), _names)
_numbers = st.one_of(st.integers(0, 7), st.sampled_from([0.5, 1.5, 2.0]))
_number_constants = st.tuples(st.just("constant"), _numbers)
_constants = st.one_of(_number_constants, st.tuples(st.just("constant"), st.sampled_from(["", "a", "ab", "it's", "5"])))

messages = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-7, 7),
        "f": st.sampled_from([-1.5, 0.0, 0.5, 2.0]),
        "s": st.sampled_from(["", "a", "ab", "b", "it's"]),
        "t": st.sampled_from(["5", "a"]),
        "b": st.booleans(),
        "c": st.booleans(),
    },
)


def _sums(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from("+-*/%"), inner, inner),
        st.tuples(st.just("negative"), inner),
    )


values = st.recursive(st.one_of(_properties, _constants), _sums, max_leaves=4)
# what may stand beside < and >: no text, and nothing that is a truth value as written
_ordered = st.recursive(st.one_of(_properties, _number_constants), _sums, max_leaves=3)
_texts = st.sampled_from(["a", "ab", "it's", "%", "_"])
_comparisons = st.one_of(
    st.tuples(st.sampled_from(["=", "<>"]), values, values),
    st.tuples(st.sampled_from([">", ">=", "<", "<="]), _ordered, _ordered),
    st.tuples(st.sampled_from(["between", "not between"]), _ordered, _ordered, _ordered),
    st.tuples(st.sampled_from(["is null", "is not null"]), values),
    st.tuples(st.sampled_from(["in", "not in"]), _properties, st.lists(_texts, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["like", "not like"]), _properties, st.text(alphabet="ab%_", max_size=4)),
    _properties,
)
conditions = st.recursive(
    _comparisons,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=6,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Tree) -> str:
    """The selector, with parentheses wherever they may be."""
    operator, *parts = tree
    if operator == "property":
        return str(parts[0])
    if operator == "constant":
        return quoted(parts[0]) if isinstance(parts[0], str) else repr(parts[0])
    if operator == "negative":
        return f"-({written(parts[0])})"
    if operator == "not":
        return f"NOT ({written(parts[0])})"
    if operator in ("is null", "is not null"):
        return f"({written(parts[0])}) {operator}"
    if operator in ("in", "not in"):
        return f"{written(parts[0])} {operator} ({', '.join(map(quoted, parts[1]))})"
    if operator in ("like", "not like"):
        return f"{written(parts[0])} {operator} {quoted(parts[1])}"
    if operator in ("between", "not between"):
        return f"({written(parts[0])}) {operator} ({written(parts[1])}) AND ({written(parts[2])})"
    return f"({written(parts[0])}) {operator} ({written(parts[1])})"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def negate(value: Any) -> Any:
    return None if value is None else not value


def condition(tree: Tree, message: dict[str, Any]) -> Any:
    value = evaluated(tree, message)
    if tree[0] != "property" or value is None:
        return value
    return value is True


def evaluated(tree: Tree, message: dict[str, Any]) -> Any:
    operator, *parts = tree
    if operator == "property":
        return message.get(parts[0])
    if operator == "constant":
        return parts[0]
    if operator == "not":
        return negate(condition(parts[0], message))
    if operator in ("and", "or"):
        found = [condition(part, message) for part in parts]
        decisive = operator == "or"
        return decisive if decisive in found else None if None in found else not decisive
    if operator.startswith("not "):
        if operator == "not between":
            below = evaluated(("<", parts[0], parts[1]), message)
            above = evaluated((">", parts[0], parts[2]), message)
            return True if True in (below, above) else None if None in (below, above) else False
        return negate(evaluated((operator[4:], *parts), message))
    if operator == "between":
        from_low = evaluated((">=", parts[0], parts[1]), message)
        to_high = evaluated(("<=", parts[0], parts[2]), message)
        return False if False in (from_low, to_high) else None if None in (from_low, to_high) else True
    value = evaluated(parts[0], message)
    if operator == "is null":
        return value is None
    if operator == "is not null":
        return value is not None
    if operator == "negative":
        return -value if is_number(value) else None
    if operator == "in":
        return value in parts[1] if isinstance(value, str) else None
    if operator == "like":
        return None if value is None else isinstance(value, str) and is_like(value, parts[1])
    other = evaluated(parts[1], message)
    if value is None or other is None:
        return None
    if operator in "+-*/%":
        return calculated(operator, value, other)
    if is_number(value) != is_number(other) or isinstance(value, str) != isinstance(other, str):
        return False
    return compared(operator, value, other)


def compared(operator: str, value: Any, other: Any) -> bool:
    if operator in ("=", "<>"):
        return bool((value == other) == (operator == "="))
    if operator in (">", "<="):
        return bool((value > other) if operator == ">" else (value <= other))
    return bool((value < other) if operator == "<" else (value >= other))


def is_like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(is_like(text[n:], pattern[1:]) for n in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and is_like(text[1:], pattern[1:])


def calculated(operator: str, value: Any, other: Any) -> Any:
    if operator == "+" and isinstance(value, str):
        return value + (str(other).lower() if isinstance(other, bool) else as_java(other))
    if not is_number(value) or not is_number(other):
        return None
    if operator == "+":
        return value + other
    if operator == "-":
        return value - other
    if operator == "*":
        return value * other
    if operator == "%":
        return math.fmod(value, other) if other and math.isfinite(value) else math.nan
    if other:
        return value / other
    return math.nan if not value or math.isnan(value) else math.copysign(math.inf, value) * math.copysign(1, other)


def as_java(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return repr(value) if isinstance(value, float) else str(value)


def given_message(properties: dict[str, Any]) -> Message:
    return Message(Destination(DestinationKind.QUEUE, "Q"), "ID:1:1:1:1", properties=properties)


@settings(deadline=None, max_examples=200)
@given(conditions, st.lists(messages, min_size=5, max_size=10))
def test_a_selector_has_the_result_of_its_tree(tree: Tree, seen: list[dict[str, Any]]) -> None:
    selector = compile_selector(written(tree))
    opposite = compile_selector(f"NOT ({written(tree)})")
    for properties in seen:
        expected = condition(tree, properties)
        assert selector.matches(given_message(properties)) is (expected is True)
        assert opposite.matches(given_message(properties)) is (expected is False)


_WORDS = """
NOT AND OR BETWEEN LIKE ESCAPE IN IS TRUE FALSE NULL XPATH REGEX SPLIT MAKELIST a b 1 2.5 0x1F 'a' '%' 'a+'
( ) , = <> < <= + - * / % -- /* */ . ' convert_string_expressions:
"""
_words = st.sampled_from(_WORDS.split())


@settings(deadline=None, max_examples=200)
@given(st.one_of(st.lists(_words, max_size=12).map(" ".join), st.text(max_size=30)), st.booleans())
def test_words_in_any_order_and_any_text_are_a_selector_or_a_mistake(text: str, is_classic: bool) -> None:
    try:
        selector = compile_selector(text, is_classic=is_classic)
    except ClientError:
        return
    selector.matches(given_message({"a": 1, "b": "x"}))
