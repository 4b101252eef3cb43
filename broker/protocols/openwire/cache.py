"""Objects that a connection repeats, by number (OpenWireFormat's marshall cache; openwire.md 4.3).

Each direction has its own table. A writer sends an object once, with an index, and the index alone from then on;
null is an object like any other. Redefining an index is allowed, and a writer may choose indexes freely.
"""

from __future__ import annotations

from tandemmq.broker.protocols.openwire.errors import WireError

Key = tuple[int | None, object]


class ReadCache:
    """Objects that the peer sent, ``size`` at most."""

    __slots__ = ("_objects", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._objects: dict[int, object] = {}

    def get(self, index: int) -> object:
        try:
            return self._objects[index]
        except KeyError:
            raise WireError(f"cache index {index} was never defined") from None

    def put(self, index: int, value: object) -> None:
        """Keep the object. With index -1, do not keep it."""
        if index >= self._size:
            raise WireError(f"cache index {index}, below {self._size} expected")
        if index >= 0:
            self._objects[index] = value


class WriteCache:
    """Objects that were sent to the peer, by data type and value. If all indexes are used, a new object takes the index
    of the oldest one, which is sent as a whole when it occurs again."""

    __slots__ = ("_indexes", "_keys", "_next", "_size")

    def __init__(self, size: int) -> None:
        assert size > 0, "a cache has at least one index"
        self._size = size
        self._next = 0
        self._indexes: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}

    def find(self, key: Key) -> int | None:
        """Return the index under which the peer knows the object."""
        return self._indexes.get(key)

    def add(self, key: Key) -> int:
        """Return the index under which the peer is to keep the object; -1: not to keep it."""
        if self._size < 2:
            return -1  # a transaction's id contains its connection's id: each would take the only index from the other
        index = self._next
        self._next = (index + 1) % self._size
        if (former := self._keys.get(index)) is not None:
            del self._indexes[former]
        self._indexes[key] = index
        self._keys[index] = key
        return index

    def forget(self) -> None:
        """Forget all objects, so that they are sent anew."""
        self._indexes.clear()
        self._keys.clear()
