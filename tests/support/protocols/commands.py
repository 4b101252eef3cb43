"""What a session asks of the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Asked = TypeVar("Asked")


def one(kind: type[Asked], commands: Iterable[object]) -> Asked:
    """The one command that there is, which is of that kind."""
    (command,) = commands
    assert isinstance(command, kind), command
    return command
