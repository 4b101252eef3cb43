"""Text in, Selector out; what was compiled lately is remembered, mistakes too.

Pure, and safe in any thread.
"""

from __future__ import annotations

import functools
import logging

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.selector.building import Built, build
from tandemmq.broker.core.selector.comparing import Rules
from tandemmq.broker.core.selector.effort import TooMuchWork
from tandemmq.broker.core.selector.grammar import Mistake, read
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import Message

log = logging.getLogger(__name__)

SELECTOR_CHARACTERS_MAX = 64 * 1024
CONVERTING_PREFIX = "convert_string_expressions:"

# What is remembered counts for no client: 64 selectors of this length, and what they are compiled to, take 13 MB at the
# very worst.
_REMEMBERED = 64
_REMEMBERED_CHARACTERS_MAX = 1024

# Longer ones take too long for the event loop: somebody else compiles them first (``is_quick``).
_QUICK_CHARACTERS_MAX = 512
# Of these so many are remembered between the two.
_LONG_REMEMBERED = 16

_SHOWN_CHARACTERS_MAX = 200

# So many conditions take less time than what else is done for a delivery.
_CHEAP_MAX = 16


class Selector:
    """A condition on messages. Two selectors are equal if their texts and their rules are. ``is_cheap``: some hundred
    evaluations are no matter of time."""

    __slots__ = ("_effort", "_evaluate", "_rules", "is_cheap", "text")

    def __init__(self, text: str, rules: Rules, built: Built) -> None:
        self.text = text
        self._rules = rules
        self._evaluate = built.evaluate
        self._effort = built.effort
        self.is_cheap = built.effort is None and built.conditions <= _CHEAP_MAX

    def matches(self, message: Message) -> bool:
        """Whether it is true; "unknown" is not. Never raises, for others wait in the same queue. A message whose
        properties are damaged, or too many (``Message.quick_properties``), or whose texts are too long for what an
        evaluation may take (effort.py), never matches."""
        effort = self._effort
        if effort is not None:
            effort.begin()
        try:
            return self._evaluate(message) is True
        except (RecordDamaged, TooMuchWork):
            return False
        except Exception:
            log.exception("a selector %s: %s", ERROR_OF_BROKER, self.text[:_SHOWN_CHARACTERS_MAX])
            return False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selector):
            return NotImplemented
        return self.text == other.text and self._rules == other._rules

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<Selector {self.text}>"


def compile_selector(text: str, *, is_classic: bool = False) -> Selector:
    """Raises ClientError(kind=SELECTOR, is_fatal=False) that tells what is wrong, and where.

    ``is_classic`` means the selector as ActiveMQ Classic does where that is not JMS (docs/selectors.md). An empty text
    is no selector: where that stands for "all messages", the caller asks before.
    """
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise _error(f"it has {len(text)} characters, and {SELECTOR_CHARACTERS_MAX} is the most", text)
    make = _remembered if len(text) <= _REMEMBERED_CHARACTERS_MAX else _long_remembered
    made = make(text, is_classic)
    if isinstance(made, Selector):
        return made
    raise _error(made, text)  # a new one each time: who raises it may write into it


def prepare() -> None:
    """Make the parsers, which takes a tenth of a second, now and not with the first selector."""
    for is_classic in (False, True):
        _compiled("a = 1", is_classic)


def is_quick(text: str) -> bool:
    """Whether ``compile_selector`` takes some milliseconds at most. Up to half a second else, unless another thread has
    compiled it a moment before."""
    return len(text) <= _QUICK_CHARACTERS_MAX


def _error(what: str, text: str) -> ClientError:
    shown = text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."
    return refusal(f"Invalid selector: {what}", f"The selector was: {shown}", ErrorKind.SELECTOR)


def _compiled(text: str, is_classic: bool) -> Selector | str:
    """The selector, or what is wrong with it."""
    is_converting = text.startswith(CONVERTING_PREFIX)
    offset = len(CONVERTING_PREFIX) if is_converting else 0
    rules = Rules(is_classic, is_converting)
    try:
        return Selector(text, rules, build(read(text[offset:], is_classic), rules))
    except Mistake as mistake:
        return f"{mistake.what}, at character {mistake.position + offset + 1}"


_remembered = functools.lru_cache(_REMEMBERED)(_compiled)
_long_remembered = functools.lru_cache(_LONG_REMEMBERED)(_compiled)
