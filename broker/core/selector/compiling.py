"""Compile selectors; recent results are cached, also errors. Pure, and safe in any thread."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.selector.comparing import Rules
from tandemmq.broker.core.selector.effort import TooMuchWork
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import Message

if TYPE_CHECKING:
    from tandemmq.broker.core.selector.building import Built

# The parsers and all that needs them are imported with the first selector, or by ``prepare``.

log = logging.getLogger(__name__)

SELECTOR_CHARACTERS_MAX = 64 * 1024
CONVERTING_PREFIX = "convert_string_expressions:"

# Limits of the cache, which counts for no client: 64 selectors of this length, with their compiled form, take at most
# 13 MB.
_REMEMBERED = 64
_REMEMBERED_CHARACTERS_MAX = 1024

# Longer selectors take too long for the event loop: another thread compiles them first (``is_quick``).
_QUICK_CHARACTERS_MAX = 512
# Number of long selectors that are cached until the event loop uses the result of that thread.
_LONG_REMEMBERED = 16

_SHOWN_CHARACTERS_MAX = 200

# Number of conditions that take less time than the rest of a delivery.
_CHEAP_MAX = 16


class Selector:
    """A condition on messages. Two selectors are equal if their texts and their rules are. ``is_cheap``: some hundred
    evaluations take negligible time. ``instructions``: of its regular expressions, in all."""

    __slots__ = ("_effort", "_evaluate", "_rules", "instructions", "is_cheap", "text")

    def __init__(self, text: str, rules: Rules, built: Built) -> None:
        self.text = text
        self._rules = rules
        self._evaluate = built.evaluate
        self._effort = built.effort
        self.instructions = built.instructions
        self.is_cheap = built.effort is None and built.conditions <= _CHEAP_MAX

    def matches(self, message: Message) -> bool:
        """Return whether the condition is true; "unknown" does not match. Never raises, because other messages wait in
        the same queue. A message whose properties are damaged, or too many (``Message.quick_properties``), or whose
        texts are too long for one evaluation (effort.py), never matches."""
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
    """Compile ``text``. Raises ClientError(kind=SELECTOR, is_fatal=False) with the mistake and its place.

    ``is_classic`` selects ActiveMQ Classic's meaning where it differs from JMS (docs/selectors.md). An empty text is no
    selector: if it means "all messages", the caller must not call this.
    """
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise _error(f"it has {len(text)} characters; the maximum is {SELECTOR_CHARACTERS_MAX}", text)
    make = _remembered if len(text) <= _REMEMBERED_CHARACTERS_MAX else _long_remembered
    result = make(text, is_classic)
    if isinstance(result, Selector):
        return result
    raise _error(result, text)  # a new error each time, as callers may change it


def postpone() -> None:
    """Leave the parsers to ``prepare``, which another thread calls. Until then no selector is quick."""
    global _is_postponed
    _is_postponed = not _is_prepared


def prepare() -> None:
    """Make the parsers, which takes a tenth of a second, before the first selector needs them."""
    global _is_prepared, _is_postponed
    for is_classic in (False, True):
        _compiled("a = 1", is_classic)
    _is_prepared = True
    _is_postponed = False


_is_prepared = _is_postponed = False


def is_quick(text: str) -> bool:
    """Return whether ``compile_selector`` takes at most some milliseconds. Otherwise it takes up to half a second,
    unless another thread has compiled the text a moment before."""
    return len(text) <= _QUICK_CHARACTERS_MAX and not _is_postponed


def _error(what: str, text: str) -> ClientError:
    shown = text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."
    return refusal(f"Invalid selector: {what}", f"The selector was: {shown}", ErrorKind.SELECTOR)


def _compiled(text: str, is_classic: bool) -> Selector | str:
    """Return the selector, or a description of its mistake."""
    from tandemmq.broker.core.selector.building import build
    from tandemmq.broker.core.selector.grammar import Mistake, read

    is_converting = text.startswith(CONVERTING_PREFIX)
    offset = len(CONVERTING_PREFIX) if is_converting else 0
    rules = Rules(is_classic, is_converting)
    try:
        return Selector(text, rules, build(read(text[offset:], is_classic), rules))
    except Mistake as mistake:
        return f"{mistake.what}, at character {mistake.position + offset + 1}"


_remembered = functools.lru_cache(_REMEMBERED)(_compiled)
_long_remembered = functools.lru_cache(_LONG_REMEMBERED)(_compiled)
