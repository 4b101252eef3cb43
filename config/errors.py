"""What is said about a wrong setting: which key, which value, what was expected, and where it was read."""

from __future__ import annotations

from typing import Final

VALUE_CHARACTERS_MAX: Final = 80


class SettingsError(Exception):
    """A setting is wrong. The message is for the operator and names all four.

    `key` is dotted ("store.checkpoint_interval"), empty when no single key is to blame; `source` is a file's name, an
    environment variable or an option.
    """

    def __init__(self, key: str, value: object, expected: str, source: str | None = None) -> None:
        self.key = key
        self.value = value
        self.expected = expected
        self.source = source
        shown = repr(value)
        if len(shown) > VALUE_CHARACTERS_MAX:
            shown = shown[:VALUE_CHARACTERS_MAX] + "…"
        where = f" (from {source})" if source else ""
        super().__init__(f"{key} = {shown}{where}: expected {expected}" if key else f"{shown}{where}: {expected}")


class UnknownSetting(SettingsError):
    """There is no such key; `near` is the one that was probably meant."""

    def __init__(self, key: str, value: object, near: str | None, source: str | None = None) -> None:
        self.near = near
        hint = f" Did you mean {near}?" if near else ""
        super().__init__(key, value, f"no such setting.{hint}", source)
        where = f" (from {source})" if source else ""
        self.args = (f"{key}{where}: there is no such setting.{hint}",)
