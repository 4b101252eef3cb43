"""Conditions: comparisons and logical operators. Results are True, False, or None for "unknown" (JMS 1.1, 3.8.1.2).

Each function takes compiled parts and returns one more part: nothing is looked up or decided again for each message.
Values of different kinds are never equal and have no order; with ``Rules.is_converting`` texts are first converted to
numbers and truth values.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tandemmq.broker.core.selector.effort import Effort
from tandemmq.broker.core.selector.like import like
from tandemmq.broker.core.selector.values import (
    COMPARED,
    OTHER,
    TEXT,
    TRUTH,
    Evaluate,
    Value,
    converted,
    kind,
    plus,
    weigh,
)
from tandemmq.store.records.message import Message

# Characters compared for order in one unit of effort. (For equality, COMPARED characters.)
_ORDERED = 1024

Order = Callable[[Any, Any], bool]
ORDERS: dict[str, Order] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Rules:
    """Variant of the language. ``is_classic``: ``<>`` is the opposite of ``=`` in all cases, and NULL equals NULL.

    ``is_converting``: the selector began with ``convert_string_expressions:``.
    """

    is_classic: bool = False
    is_converting: bool = False


# ---- = and <>


def equal(left: Evaluate, right: Evaluate, rules: Rules, effort: Effort) -> Evaluate:
    same = _same(rules, effort)

    def evaluate(message: Message) -> Value:
        one = left(message)
        other = right(message)
        if one is None or other is None:
            return None
        return same(one, other) is True

    def evaluate_as_classic(message: Message) -> Value:
        one = left(message)
        other = right(message)
        if one is None:  # EqualsExpression.evaluate: unknown only if the left side alone is NULL
            return True if other is None else None
        return other is not None and same(one, other) is True

    return evaluate_as_classic if rules.is_classic else evaluate


def not_equal(left: Evaluate, right: Evaluate, rules: Rules, effort: Effort) -> Evaluate:
    if rules.is_classic:
        return opposite(equal(left, right, rules, effort))
    same = _same(rules, effort)

    def evaluate(message: Message) -> Value:
        one = left(message)
        other = right(message)
        if one is None or other is None:
            return None
        return same(one, other) is False  # JMS 1.1, 3.8.1.2: unlike types make a comparison false

    return evaluate


def _same(rules: Rules, effort: Effort) -> Callable[[Value, Value], bool | None]:
    """Return a function that tests whether two values are equal; None: they cannot be compared."""

    def same(one: Value, other: Value) -> bool | None:
        its_kind = kind(one)
        if its_kind == kind(other):
            if its_kind == TEXT:
                if len(one) > COMPARED and len(other) > COMPARED:
                    effort.spend(len(one) // COMPARED)
            elif its_kind == OTHER:
                weigh(one, effort)
            return bool(one == other)
        if not rules.is_converting:
            return None
        one, other = _alike(one, other)
        return None if one is None else bool(one == other)

    return same


def _alike(one: Value, other: Value) -> tuple[Value, Value]:
    """Return two values of different kinds as values of one kind, or None twice."""
    if kind(one) == TEXT and kind(other) != OTHER:
        one = converted(one, other)
    elif kind(other) == TEXT and kind(one) != OTHER:
        other = converted(other, one)
    else:
        return None, None
    return (None, None) if one is None or other is None else (one, other)


def property_equals_text(name: str, text: str) -> Evaluate:
    """Return the condition ``name = 'text'``, the most frequent one: as ``equal``, with two calls less."""

    def evaluate(message: Message) -> Value:
        properties = message.quick_properties
        if properties is None:
            return None
        value = properties.get(name)
        return None if value is None else value == text

    return evaluate


# ---- order


def ordered(left: Evaluate, right: Evaluate, order: Order, rules: Rules, effort: Effort) -> Evaluate:
    """Return a comparison for order. Two properties that are texts have an order, although literal texts are not
    allowed."""
    is_converting = rules.is_converting

    def evaluate(message: Message) -> Value:
        one = left(message)
        if one is None:
            return None
        other = right(message)
        if other is None:
            return None
        if kind(one) != kind(other):
            if not is_converting:
                return False
            one, other = _alike(one, other)
            if one is None:
                return False
        if type(one) is str and len(one) > _ORDERED and len(other) > _ORDERED:
            effort.spend(min(len(one), len(other)) // _ORDERED)
        return False if kind(one) == OTHER else order(one, other)

    return evaluate


def property_ordered(name: str, number: int | float, order: Order, rules: Rules, effort: Effort) -> Evaluate:
    """Return ``name > 5`` and similar conditions: as ``ordered``, but faster for the usual types."""

    def value_of(message: Message) -> Value:
        properties = message.quick_properties
        return None if properties is None else properties.get(name)

    otherwise = ordered(value_of, lambda message: number, order, rules, effort)

    def evaluate(message: Message) -> Value:
        properties = message.quick_properties
        if properties is None:
            return None
        value = properties.get(name)
        if type(value) is int or type(value) is float:
            return order(value, number)
        return None if value is None else otherwise(message)

    return evaluate


# ---- tests of one value


def is_null(value: Evaluate) -> Evaluate:
    return lambda message: value(message) is None


def is_not_null(value: Evaluate) -> Evaluate:
    return lambda message: value(message) is not None


def is_like(value: Evaluate, pattern: str, escape: str | None, effort: Effort) -> Evaluate:
    """Return a LIKE condition. It is False for values that are not texts."""
    test = like(pattern, escape, effort)

    def evaluate(message: Message) -> Value:
        found = value(message)
        if found is None:
            return None
        return kind(found) == TEXT and test(found)

    return evaluate


def is_among(value: Evaluate, texts: Sequence[str], is_expected: bool) -> Evaluate:
    """Return IN, or with ``is_expected`` False NOT IN; unknown for values that are not texts."""
    among = frozenset(texts)

    def evaluate(message: Message) -> Value:
        found = value(message)
        if kind(found) != TEXT:
            return None
        return (found in among) is is_expected

    return evaluate


def as_condition(value: Evaluate) -> Evaluate:
    """Return a condition from a property: False for values that are not truth values."""

    def evaluate(message: Message) -> Value:
        found = value(message)
        if found is None or kind(found) == TRUTH:
            return found
        return False

    return evaluate


# ---- NOT, AND, OR


def opposite(condition: Evaluate) -> Evaluate:
    def evaluate(message: Message) -> Value:
        found = condition(message)
        return None if found is None else not found

    return evaluate


def all_of(conditions: Sequence[Evaluate]) -> Evaluate:
    """Return AND: the first false condition decides."""
    if len(conditions) == 2:
        return _both(*conditions)

    def evaluate(message: Message) -> Value:
        answer: Value = True
        for condition in conditions:
            found = condition(message)
            if found is False:
                return False
            if found is None:
                answer = None
        return answer

    return evaluate


def _both(left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(message: Message) -> Value:
        one = left(message)
        if one is False:
            return False
        other = right(message)
        return other if one is True or other is False else None

    return evaluate


def any_of(conditions: Sequence[Evaluate]) -> Evaluate:
    """Return OR: the first true condition decides."""

    def evaluate(message: Message) -> Value:
        answer: Value = False
        for condition in conditions:
            found = condition(message)
            if found is True:
                return True
            if found is None:
                answer = None
        return answer

    return evaluate


def joined(left: Evaluate, right: Evaluate, effort: Effort) -> Evaluate:
    """Return ``+``: a sum, or the concatenation of two texts."""
    return calculated(functools.partial(plus, effort), left, right)


def calculated(operation: Callable[[Value, Value], Value], left: Evaluate, right: Evaluate) -> Evaluate:
    """Return an operation of values.py on two parts; its result is None when one of them is."""

    def evaluate(message: Message) -> Value:
        one = left(message)
        if one is None:
            return None
        other = right(message)
        return None if other is None else operation(one, other)

    return evaluate
