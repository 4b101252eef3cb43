"""Errors for a wrong setting: the key, the value, the expected value, and where the setting was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandemmq.config.secrets import masked

VALUE_CHARACTERS_MAX: Final = 80


class SettingsError(Exception):
    """A setting is wrong. The message is for the operator and names all four, but shows no password.

    `key` is dotted ("store.checkpoint_interval"), empty when no single key is wrong; `source` is a file's name, an
    environment variable or an option.
    """

    def __init__(self, key: str, value: object, expected: str, source: str | None = None) -> None:
        super().__init__(key, value, expected, source)
        self.key = key
        self.value = value
        self.expected = expected
        self.source = source

    def facts(self) -> dict[str, object]:
        """Return the same facts for a program."""
        return {
            "key": self.key,
            "value": masked(self.value, self.key),
            "expected": self.expected,
            "source": self.source,
            "near": None,
        }

    @property
    def all(self) -> tuple[SettingsError, ...]:
        """All errors, in the order in which they were read."""
        return (self,)

    def __str__(self) -> str:
        shown = repr(masked(self.value, self.key))
        if len(shown) > VALUE_CHARACTERS_MAX:
            shown = shown[:VALUE_CHARACTERS_MAX] + "…"
        return (
            f"{self.key} = {shown}{self._where}: expected {self.expected}" if self.key else f"{shown}: {self.expected}"
        )

    @property
    def _where(self) -> str:
        return f" (from {self.source})" if self.source else ""


class SeveralWrong(SettingsError):
    """Several settings are wrong. The attributes are those of the first error; the message has a line for each."""

    def __init__(self, errors: Sequence[SettingsError]) -> None:
        first = errors[0]
        super().__init__(first.key, first.value, first.expected, first.source)
        self._errors = tuple(errors)

    @property
    def all(self) -> tuple[SettingsError, ...]:
        return self._errors

    def __str__(self) -> str:
        return "\n".join(map(str, self._errors))


class UnknownSetting(SettingsError):
    """The key does not exist; `near` is the most similar existing one."""

    def __init__(self, key: str, value: object, near: str | None, source: str | None = None) -> None:
        super().__init__(key, value, near or "no such setting", source)
        self.near = near

    def facts(self) -> dict[str, object]:
        return super().facts() | {"expected": "an existing setting", "near": self.near}

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return f"{self.key}{self._where}: there is no such setting.{hint}"


class RefusedSetting(SettingsError):
    """A setting of ActiveMQ is not available here. ``reason`` is the reason, and the setting to use instead."""

    def __init__(self, key: str, value: object, reason: str, source: str | None = None) -> None:
        super().__init__(key, value, "", source)
        self.reason = reason

    def facts(self) -> dict[str, object]:
        return super().facts() | {"expected": self.reason}

    def __str__(self) -> str:
        return f"{self.key} = {masked(self.value, self.key)!r}{self._where}: refused: {self.reason}"
