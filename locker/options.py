"""Settings of `[locker]` for one kind of lock."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.locker.contract import LockSettingsError


class Options:
    """Options of one kind. Each key is read once; then `end` refuses keys that were not read.

    A value may be a text, from the environment or a command line. None counts as not set. An invalid value raises
    LockSettingsError, whose text names the key.
    """

    def __init__(self, values: Mapping[str, object], table: str = "") -> None:
        """Make options of these values. `table`: the keys are in `[locker.<table>]`."""
        self._prefix = f"{table}." if table else ""
        self._unread = {key: value for key, value in values.items() if value is not None}
        self._known: list[str] = []

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a text that is not empty, or the default."""
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
        """Raise LockSettingsError if a key was not read, because this kind does not have it."""
        for key, value in self._unread.items():
            known = f"one of {', '.join(sorted(self._known))}" if self._known else "no options for this kind of lock"
            raise LockSettingsError(self._prefix + key, value, known)

    def _take(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._unread.pop(key, default)
