"""Commands of a session to the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Asked = TypeVar("Asked")


def one(kind: type[Asked], commands: Iterable[object]) -> Asked:
    """Return the only command, which must be of this kind."""
    (command,) = commands
    assert isinstance(command, kind), command
    return command
