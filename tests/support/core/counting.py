"""Counts of calls, to check the bound of a step without measuring time."""

from __future__ import annotations

from typing import Any

import pytest


class Times:
    """The number of calls; a test may reset it."""

    count = 0


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Times:
    """Count the calls of a function of a module, a class or an object."""
    times, function = Times(), getattr(owner, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        times.count += 1
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)
    return times


def count_reads(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Times:
    """Count the reads of an attribute, for all objects of a class with slots."""
    times, slot = Times(), getattr(owner, name)

    def counted(instance: Any) -> Any:
        times.count += 1
        return slot.__get__(instance)

    monkeypatch.setattr(owner, name, property(counted, slot.__set__))
    return times
