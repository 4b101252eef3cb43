"""Settings of `[locker]` for one kind of lock, read key by key; keys that are left over are refused."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.locker.contract import LockSettingsError


class Options:
    """Options of one kind. Each key is read once; `end` refuses those that were not read.

    A value may come as text, from the environment or a command line. None counts as not set. An invalid value raises
    LockSettingsError, which names the key.
    """

    def __init__(self, values: Mapping[str, object], table: str = "") -> None:
        """Take the values; with `table` the keys are in `[locker.<table>]`."""
        self._prefix = f"{table}." if table else ""
        self._left = {key: value for key, value in values.items() if value is not None}
        self._known: list[str] = []

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a text that is not empty."""
        value = self._take(key, default)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise LockSettingsError(self._prefix + key, value, "a text")
        return value

    def number(self, key: str, default: float, minimum: float = 0.0) -> float:
        value = self._take(key, default)
        try:
            number = float(value) if isinstance(value, int | float | str) else None
        except ValueError:
            number = None
        if number is None or isinstance(value, bool) or not number >= minimum:
            raise LockSettingsError(self._prefix + key, value, f"a number not below {minimum:g}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower(), value)
        if not isinstance(value, bool):
            raise LockSettingsError(self._prefix + key, value, "true or false")
        return value

    def end(self) -> None:
        """Refuse the first key that this kind does not know."""
        for key, value in self._left.items():
            known = f"one of {', '.join(sorted(self._known))}" if self._known else "no options for this kind of lock"
            raise LockSettingsError(self._prefix + key, value, known)

    def _take(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._left.pop(key, default)
