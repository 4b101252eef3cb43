"""The three versions of STOMP: how lines end, how names and values are escaped and read back. Pure.

Only these values of :class:`Dialect` differ between the versions.
"""

from __future__ import annotations

import re
from typing import Final

from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.protocols.stomp.destinations import write_destination
from tandemmq.store.records.message import Destination
from tandemmq.store.records.remembered import remember


class Dialect:
    """Rules of one version for lines and escapes.

    ``drops_cr``: a CR right before LF belongs to the line's end. STOMP 1.2 requires this; ActiveMQ does it in 1.0, too,
    and this broker for each CONNECT, which is read before the version is known. In 1.1 it belongs to the value.
    ``trims``: blanks around a value do not count (ActiveMQ in 1.0).
    """

    __slots__ = ("_destinations", "_escapes", "_producers", "_undoes", "_unescapes", "drops_cr", "trims", "version")

    def __init__(self, version: str, escapes: dict[str, str], *, drops_cr: bool, trims: bool) -> None:
        self.version = version
        self.drops_cr = drops_cr
        self.trims = trims
        # Backslash first, because other escapes contain it. A chain of replacements: a third of translate's time.
        self._escapes = tuple((escapes | {"\0": " "} | ({} if "\n" in escapes else {"\n": " ", "\r": " "})).items())
        self._unescapes = {escape: character for character, escape in escapes.items()}
        # Likewise: an escaped backslash is a NUL until all other escapes are undone.
        self._undoes = tuple((escape, "\0" if escape == "\\\\" else each) for escape, each in self._unescapes.items())
        self._destinations: dict[Destination, str] = {}
        self._producers: dict[str, str] = {}

    @property
    def has_escapes(self) -> bool:
        return bool(self._unescapes)

    def may_name(self, name: str) -> bool:
        """Return whether a header may have that name. Without escapes it would end at a colon, and ``JMSXUserID:admin``
        of another client would be read as the header JMSXUserID; and where blanks do not count none may surround it."""
        return self.has_escapes or (":" not in name and "\n" not in name and name == name.strip())

    def escape(self, text: str) -> str:
        """Return ``text`` as it may be in a header name or value.

        Characters that a version cannot express (NUL in any, line ends in 1.0) become a blank: no client may add
        headers or end a frame by a value.
        """
        for character, escape in self._escapes:
            text = text.replace(character, escape)
        return text

    def destination(self, value: Destination) -> str:
        """Return ``write_destination``, escaped; keep it for the next time."""
        text = self._destinations.get(value)
        if text is None:
            text = self.escape(write_destination(value))
            remember(self._destinations, value, text, len(text))
        return text

    def message_id(self, value: str) -> str:
        """Return ``value``, escaped; keep the escaped part before its number for the next call."""
        producer, _, number = value.rpartition(":")
        if not producer or not number.isdecimal():
            return self.escape(value)
        text = self._producers.get(producer)
        if text is None:
            text = self.escape(value[: -len(number)])
            remember(self._producers, producer, text, len(text))
        return text + number

    def unescape(self, text: str) -> str:
        """Undo the escapes of ``text``, which has no NUL. STOMP 1.1 and 1.2, Value Encoding: undefined escape sequences
        are a fatal protocol error."""
        if "\\" not in text:
            return text
        plain = text
        for escape, character in self._undoes:
            plain = plain.replace(escape, character)
        if "\\" in plain:
            undefined = next(found[0] for found in _ESCAPE.finditer(text) if found[0] not in self._unescapes)
            raise ClientError(
                f"Undefined escape sequence {undefined!r} in a header",
                f"STOMP {self.version} knows only {', '.join(self._unescapes)} in header names and values.",
            )
        return plain.replace("\0", "\\")


_ESCAPE: Final = re.compile(r"\\.?", re.DOTALL)

V10: Final = Dialect("1.0", {}, drops_cr=True, trims=True)
# Of CONNECT: read before it is known whether blanks count, so they are kept.
CONNECTING: Final = Dialect("1.0", {}, drops_cr=True, trims=False)
V11: Final = Dialect("1.1", {"\\": "\\\\", "\n": "\\n", ":": "\\c"}, drops_cr=False, trims=False)
V12: Final = Dialect("1.2", {"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"}, drops_cr=True, trims=False)
# CONNECT and CONNECTED are never escaped (STOMP 1.2, Value Encoding), and read before the version is known.
DIALECTS: Final = {dialect.version: dialect for dialect in (V10, V11, V12)}
