"""Parts of packets: integers, strings and binary data (MQTT 5.0, 1.5; 3.1.1 has the same but for the names).

    byte | two byte integer | four byte integer      big-endian
    variable byte integer                            seven bits a byte, the lowest first; bit 7: another byte follows
    string, binary data                              | length u16 | bytes |

Reading knows where the packet ends and never looks beyond.
"""

from __future__ import annotations

import struct
from typing import Final

from tandemmq.broker.protocols.mqtt.reasons import malformed

#: The longest string and the longest binary data.
BYTES_MAX: Final = 0xFFFF
VARIABLE_BYTES_MAX: Final = 4
VARIABLE_MAX: Final = (1 << 7 * VARIABLE_BYTES_MAX) - 1
#: The longest packet: the byte of its type, and its length, which that does not count.
PACKET_BYTES_MAX: Final = 1 + VARIABLE_BYTES_MAX + VARIABLE_MAX

_TWO = struct.Struct(">H")
_FOUR = struct.Struct(">I")


def is_text(value: str) -> bool:
    """Return whether ``value`` can be sent as a string: not too long, no U+0000, no half of a surrogate pair."""
    try:
        return len(value) <= BYTES_MAX and "\0" not in value and len(value.encode()) <= BYTES_MAX
    except UnicodeEncodeError:
        return False


def two_bytes(value: int) -> bytes:
    return _TWO.pack(value)


def four_bytes(value: int) -> bytes:
    return _FOUR.pack(value)


def variable(value: int) -> bytes:
    """Return ``value`` as a variable byte integer, in as few bytes as can be (MQTT-1.5.5-1)."""
    if value < 0x80:
        return bytes((value,))
    assert value <= VARIABLE_MAX, f"{value} has no place in a variable byte integer"
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def text(value: str) -> bytes:
    """Return ``value``, for which ``is_text`` holds, as a string."""
    return binary(value.encode())


def binary(value: bytes) -> bytes:
    """Return ``value``, of BYTES_MAX bytes at most, as binary data."""
    assert len(value) <= BYTES_MAX, f"{len(value)} bytes have no place in a string"
    return _TWO.pack(len(value)) + value


class Reader:
    """Reads ``data`` from ``at`` to ``end``, where the packet, or its part, ends. All methods raise MqttError, a
    malformed packet, where something is cut off or not of its type."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    @property
    def left(self) -> int:
        """Number of bytes that were not read yet."""
        return self.end - self.at

    def byte(self) -> int:
        at = self._pass(1)
        return self.data[at]

    def two_bytes(self) -> int:
        at = self._pass(2)
        data = self.data
        return data[at] << 8 | data[at + 1]

    def four_bytes(self) -> int:
        at = self._pass(4)
        return int.from_bytes(self.data[at : at + 4], "big")

    def variable(self) -> int:
        """Return a variable byte integer of MQTT 5.0, which has as few bytes as can be."""
        value = 0
        for number in range(VARIABLE_BYTES_MAX):
            byte = self.data[self._pass(1)]
            value |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                if byte == 0 and number:
                    raise malformed("a variable byte integer has more bytes than it needs")
                return value
        raise malformed(f"a variable byte integer has more than {VARIABLE_BYTES_MAX} bytes")

    def binary(self) -> bytes:
        length = self.two_bytes()
        at = self._pass(length)
        return self.data[at : at + length]

    def text(self) -> str:
        return decoded(self.binary())

    def _pass(self, length: int) -> int:
        """Return where the next ``length`` bytes begin; reading goes on behind them."""
        at = self.at
        if at + length > self.end:
            raise malformed("the packet ends inside a field")
        self.at = at + length
        return at


def decoded(data: bytes) -> str:
    """Return the string in ``data``. MqttError where they are not UTF-8 (Python's decoder refuses surrogates, as
    MQTT-1.5.4-1 demands) or have U+0000 in them (MQTT-1.5.4-2)."""
    try:
        value = data.decode()
    except UnicodeDecodeError:
        raise malformed("a string is not UTF-8") from None
    if "\0" in value:
        raise malformed("a string contains U+0000")
    return value
