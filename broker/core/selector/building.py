"""Conversion of a selector's tree to closures, with the checks of the operands.

Parts are built from the leaves up, without recursion. Mistakes that Classic's parser refuses are refused here: a text
or a truth value beside ``<``, NULL beside ``=``, a number where a condition belongs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from lark import Token, Tree, v_args
from lark.exceptions import VisitError
from lark.visitors import Transformer_InPlace

from tandemmq.broker.core.selector import comparing, functions, values
from tandemmq.broker.core.selector.comparing import ORDERS, Rules
from tandemmq.broker.core.selector.effort import Effort
from tandemmq.broker.core.selector.grammar import Mistake
from tandemmq.broker.core.selector.headers import HEADERS, property_of
from tandemmq.broker.core.selector.like import SEARCHED_CHARACTERS_MAX
from tandemmq.broker.core.selector.patterns import Pattern
from tandemmq.broker.core.selector.syntax import PatternInvalid
from tandemmq.broker.core.selector.values import COMPARED, NUMBER, Evaluate, Value, kind

# Maximum depth of nested operators; AND and OR in a row, and parentheses, do not count.
NESTING_MAX = 200
PATTERNS_MAX = 10
# Maximum number of comparisons, calculations and their arguments that are evaluated for one message, in about
# 2 ms.
CONDITIONS_MAX = 4_000

_LONG_BEYOND = 1 << 63

_WORDS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
_CALCULATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "-": values.minus,
    "*": values.times,
    "/": values.divided,
    "%": values.remainder,
}


class Shape(Enum):
    """Kind of a part, known before there is a message."""

    CONSTANT = auto()
    PROPERTY = auto()
    CONDITION = auto()
    VALUE = auto()


@dataclass(frozen=True, slots=True)
class Part:
    """A compiled part. ``constant`` is its value (CONSTANT) or its name (PROPERTY)."""

    shape: Shape
    evaluate: Evaluate
    position: int
    height: int = 1
    constant: Value = None

    @property
    def is_condition(self) -> bool:
        """True if the part is a condition. TRUE, FALSE and NULL are conditions as well as values."""
        return self.shape is Shape.CONDITION or (
            self.shape is Shape.CONSTANT and (self.constant is None or type(self.constant) is bool)
        )


@dataclass(frozen=True, slots=True)
class Built:
    """``evaluate`` returns the selector's result for a message: True, False or None. ``effort``: its bound for one
    message; None: its work does not grow with the message. ``conditions``: number that CONDITIONS_MAX limits.
    ``instructions``: number of instructions of all its regular expressions."""

    evaluate: Evaluate
    effort: Effort | None
    conditions: int
    instructions: int


def build(tree: Tree[Token], rules: Rules) -> Built:
    """Build the closures of ``tree``. Raises Mistake."""
    builder = _Builder(rules)
    try:
        part = builder.transform(tree)
    except VisitError as error:
        if isinstance(error.orig_exc, Mistake):
            raise error.orig_exc from None
        raise
    assert isinstance(part, Part), "a rule of the grammar has no method here"
    effort = builder.effort if builder.is_variable else None
    return Built(_condition(part).evaluate, effort, builder.conditions, builder.instructions)


def _part(shape: Shape, evaluate: Evaluate, *parts: Part) -> Part:
    height = 1 + max(part.height for part in parts)
    if height > NESTING_MAX:
        raise Mistake(f"more than {NESTING_MAX} operators are nested", parts[0].position)
    return Part(shape, evaluate, parts[0].position, height)


def _constant(value: Value, token: Token) -> Part:
    return Part(Shape.CONSTANT, lambda message: value, token.start_pos or 0, constant=value)


def _condition(part: Part) -> Part:
    """Return ``part`` as a condition (SelectorParser.asBooleanExpression)."""
    if part.is_condition:
        return part
    if part.shape is Shape.PROPERTY:
        return _part(Shape.CONDITION, comparing.as_condition(part.evaluate), part)
    raise Mistake("a condition is expected, not a value", part.position)


def _comparable(part: Part) -> None:
    """Check that ``part`` can have an order (ComparisonExpression.checkLessThanOperand)."""
    if part.is_condition:
        raise Mistake("a truth value or NULL has no order", part.position)
    if part.shape is Shape.CONSTANT and kind(part.constant) != NUMBER:
        raise Mistake("a text has no order", part.position)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class _Builder(Transformer_InPlace[Token, Part]):
    """Tree transformer with one method for each rule of the grammar."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules
        self._patterns = 0
        self._searched = 0
        self.effort = Effort()
        self.is_variable = False
        self.conditions = 0
        self.instructions = 0

    def _part(self, evaluate: Evaluate, *parts: Part, shape: Shape = Shape.CONDITION) -> Part:
        """Make a part that is evaluated for each message. Raises Mistake if there are too many, or they are nested too
        deep."""
        self.conditions += max(1, len(parts) - 1)
        if self.conditions > CONDITIONS_MAX:
            raise Mistake(f"it has more than {CONDITIONS_MAX} comparisons, operators and arguments", parts[0].position)
        return _part(shape, evaluate, *parts)

    def _takes_effort(self) -> Effort:
        """Return the effort of a part that grows with a message's texts."""
        self.is_variable = True
        return self.effort

    def _compares(self, left: Part, right: Part) -> Effort:
        """Return the effort of a comparison, which grows if both sides may be long texts."""
        for each in (left, right):
            if each.shape is Shape.CONSTANT and (type(each.constant) is not str or len(each.constant) <= COMPARED):
                return self.effort
        return self._takes_effort()

    # ---- conditions

    def any_of(self, *parts: Part) -> Part:
        conditions = [_condition(part) for part in parts]
        return self._part(comparing.any_of([each.evaluate for each in conditions]), *conditions)

    def all_of(self, *parts: Part) -> Part:
        conditions = [_condition(part) for part in parts]
        return self._part(comparing.all_of([each.evaluate for each in conditions]), *conditions)

    def negation(self, part: Part) -> Part:
        condition = _condition(part)
        return self._part(comparing.opposite(condition.evaluate), condition)

    def _check_equal(self, left: Part, right: Part) -> None:
        for part in (left, right):
            if part.shape is Shape.CONSTANT and part.constant is None:
                raise Mistake("NULL cannot be compared: write IS NULL", part.position)
        if left.shape is right.shape is Shape.CONSTANT and left.is_condition and not right.is_condition:
            raise Mistake("a truth value cannot be compared with this", right.position)

    def equal(self, left: Part, right: Part) -> Part:
        self._check_equal(left, right)
        is_plain = left.shape is Shape.PROPERTY and left.constant not in HEADERS and not self._rules.is_converting
        if is_plain and right.shape is Shape.CONSTANT and type(right.constant) is str:
            evaluate = comparing.property_equals_text(left.constant, right.constant)
        else:
            evaluate = comparing.equal(left.evaluate, right.evaluate, self._rules, self._compares(left, right))
        return self._part(evaluate, left, right)

    def not_equal(self, left: Part, sign: Token, right: Part) -> Part:
        self._check_equal(left, right)
        effort = self._compares(left, right)
        return self._part(comparing.not_equal(left.evaluate, right.evaluate, self._rules, effort), left, right)

    def is_null(self, part: Part) -> Part:
        return self._part(comparing.is_null(part.evaluate), part)

    def is_not_null(self, part: Part) -> Part:
        return self._part(comparing.is_not_null(part.evaluate), part)

    def ordered(self, left: Part, sign: Token | str, right: Part) -> Part:
        _comparable(left)
        _comparable(right)
        order = ORDERS[sign]
        effort = self._compares(left, right)
        if left.shape is Shape.PROPERTY and left.constant not in HEADERS and right.shape is Shape.CONSTANT:
            evaluate = comparing.property_ordered(left.constant, right.constant, order, self._rules, effort)
        else:
            evaluate = comparing.ordered(left.evaluate, right.evaluate, order, self._rules, effort)
        return self._part(evaluate, left, right)

    def between(self, part: Part, low: Part, high: Part) -> Part:
        return self.all_of(self.ordered(part, ">=", low), self.ordered(part, "<=", high))

    def not_between(self, part: Part, low: Part, high: Part) -> Part:
        return self.any_of(self.ordered(part, "<", low), self.ordered(part, ">", high))

    def like(self, part: Part, pattern: Token, escape: Token | None) -> Part:
        if "_" in pattern.partition("%")[2]:
            self._searched += len(pattern)
            if self._searched > SEARCHED_CHARACTERS_MAX:
                what = f"LIKE patterns with _ after % have more than {SEARCHED_CHARACTERS_MAX} characters in all"
                raise Mistake(what, pattern.start_pos or 0)
        escaping = None if escape is None else _unquoted(escape)
        if escape is not None and (escaping is None or len(escaping) != 1):
            raise Mistake("ESCAPE is not one character", escape.start_pos or 0)
        evaluate = comparing.is_like(part.evaluate, _unquoted(pattern), escaping, self._takes_effort())
        return self._part(evaluate, part)

    def not_like(self, part: Part, pattern: Token, escape: Token | None) -> Part:
        return self.negation(self.like(part, pattern, escape))

    def among(self, part: Part, *texts: Token) -> Part:
        return self._among(part, texts, True)

    def not_among(self, part: Part, *texts: Token) -> Part:
        return self._among(part, texts, False)

    def _among(self, part: Part, texts: tuple[Token, ...], is_expected: bool) -> Part:
        if part.shape is not Shape.PROPERTY:
            raise Mistake("only a property can be IN a list", part.position)
        evaluate = comparing.is_among(part.evaluate, [_unquoted(text) for text in texts], is_expected)
        return self._part(evaluate, part)

    # ---- values

    def calculation(self, left: Part, sign: Token, right: Part) -> Part:
        if sign == "+":
            is_sum = left.shape is Shape.CONSTANT and kind(left.constant) == NUMBER  # with a text, it joins texts
            effort = self.effort if is_sum else self._takes_effort()
            evaluate = comparing.joined(left.evaluate, right.evaluate, effort)
        else:
            evaluate = comparing.calculated(_CALCULATIONS[sign], left.evaluate, right.evaluate)
        return self._part(evaluate, left, right, shape=Shape.VALUE)

    def positive(self, sign: Token, part: Part) -> Part:
        return part

    def negative(self, sign: Token, part: Part) -> Part:
        evaluate = part.evaluate
        return self._part(lambda message: values.negated(evaluate(message)), part, shape=Shape.VALUE)

    def text(self, token: Token) -> Part:
        return _constant(_unquoted(token), token)

    def decimal(self, token: Token) -> Part:
        digits = token.rstrip("lL")
        # 2**63 does not fit into a long, but -2**63 does
        if len(digits) > 19 or int(digits) > _LONG_BEYOND:
            raise Mistake("the number has more than 64 bits", token.start_pos or 0)
        return _constant(int(digits), token)

    def hexadecimal(self, token: Token) -> Part:
        return self._integer(token, int(token[2:], 16))

    def octal(self, token: Token) -> Part:
        return self._integer(token, int(token, 8))

    def _integer(self, token: Token, value: int) -> Part:
        if value >= _LONG_BEYOND:
            raise Mistake("the number has more than 64 bits", token.start_pos or 0)
        return _constant(value, token)

    def floating(self, token: Token) -> Part:
        return _constant(float(token), token)

    def word(self, token: Token) -> Part:
        return _constant(_WORDS[token.upper()], token)

    def property(self, token: Token) -> Part:
        return Part(Shape.PROPERTY, property_of(str(token)), token.start_pos or 0, constant=str(token))

    def xpath(self, token: Token) -> Part:
        raise Mistake("XPATH and XQUERY, conditions on an XML body, are not supported", token.start_pos or 0)

    # ---- functions

    def call(self, name: Token, *given: Part | None) -> Part:
        arguments = [part for part in given if part is not None]
        position = name.start_pos or 0
        if name not in functions.ARITIES:
            known = ", ".join(functions.ARITIES)
            raise Mistake(f"there is no function {name[:40]}; the functions are {known}", position)
        least, most = functions.ARITIES[name]
        if not least <= len(arguments) <= most:
            raise Mistake(f"{name} has {len(arguments)} arguments", position)
        if name in functions.LISTS:
            evaluate = functions.LISTS[name]([part.evaluate for part in arguments], self._takes_effort())
        elif name == "REGEX":
            evaluate = functions.regex(self._pattern(arguments[0]), arguments[1].evaluate, self.effort)
        elif name == "REPLACE":
            evaluate = self._replace(*arguments)
        else:
            limit = self._written(arguments[2], int) if len(arguments) > 2 else 0
            evaluate = functions.split(arguments[0].evaluate, self._pattern(arguments[1]), limit)
        shape = Shape.CONDITION if name in functions.CONDITIONS else Shape.VALUE
        return self._part(evaluate, Part(Shape.VALUE, evaluate, position), *arguments, shape=shape)

    def _replace(self, source: Part, pattern: Part, replacement: Part) -> Evaluate:
        try:
            written = functions.replacement_text(self._written(replacement, str))
        except ValueError as error:
            raise Mistake(str(error), replacement.position) from None
        return functions.replace(source.evaluate, self._pattern(pattern), written, self.effort)

    def _pattern(self, part: Part) -> Pattern:
        self._patterns += 1
        if self._patterns > PATTERNS_MAX:
            raise Mistake(f"more than {PATTERNS_MAX} regular expressions", part.position)
        try:
            pattern = Pattern(self._written(part, str), self._takes_effort())
        except PatternInvalid as error:
            raise Mistake(f"the regular expression has {error}", part.position) from None
        self.instructions += pattern.instructions
        return pattern

    def _written(self, part: Part, wanted: type) -> Value:
        """Return an argument that must be a literal in the selector."""
        if part.shape is not Shape.CONSTANT or type(part.constant) is not wanted:
            name = "text in single quotes" if wanted is str else "whole number"
            raise Mistake(f"this argument must be a {name}", part.position)
        return part.constant
