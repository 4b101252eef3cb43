"""Names and patterns by their words: what matches is found without looking at what does not. Pure.

What a search costs grows with what it finds, and with the number of words; not with what there is beside.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from tandemmq.broker.core.names import Pattern
from tandemmq.broker.core.slices import Pace

Value = TypeVar("Value", bound=Hashable)


class _Node(Generic[Value]):
    """``values`` end here; ``open_values`` take whatever follows, too."""

    __slots__ = ("children", "open_values", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Value]] = {}
        self.values: dict[Value, None] = {}
        self.open_values: dict[Value, None] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.values or self.open_values)


class _Trie(Generic[Value]):
    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node()

    def _make(self, words: list[str]) -> _Node[Value]:
        node = self._root
        for word in words:
            node = node.children.setdefault(word, _Node())
        return node

    def _path(self, words: list[str]) -> list[_Node[Value]]:
        """From the root to the words' end. KeyError when they are not there."""
        path = [self._root]
        for word in words:
            path.append(path[-1].children[word])
        return path

    def _prune(self, words: list[str], path: list[_Node[Value]]) -> None:
        """Take away nodes that hold nothing any more, from the end on."""
        for word, parent, node in zip(reversed(words), reversed(path[:-1]), reversed(path[1:]), strict=True):
            if not node.is_empty:
                return
            del parent.children[word]


class NameTrie(_Trie[Value]):
    """Values by plain names."""

    __slots__ = ()

    def add(self, name: str, value: Value) -> None:
        """Once more makes no difference."""
        self._make(name.split(".")).values[value] = None

    def remove(self, name: str, value: Value) -> None:
        """One that is not there makes no difference."""
        words = name.split(".")
        try:
            path = self._path(words)
        except KeyError:
            return
        path[-1].values.pop(value, None)
        self._prune(words, path)

    def matching(self, pattern: Pattern) -> Iterator[list[Value]]:
        """The values of all names that ``pattern`` matches, in lists: for each ITEMS nodes are visited, and it may
        be empty. Names may be added and removed meanwhile: those are found, or not."""
        wanted, is_open = pattern.words, pattern.is_open
        ways = [(self._root, 0)]
        found: list[Value] = []
        pace = Pace()
        while ways:
            if pace.is_full():
                yield found
                found = []
            node, number = ways.pop()
            if number == len(wanted):
                found += node.values
                if is_open:
                    ways += [(child, number) for child in reversed(node.children.values())]
            elif wanted[number] == "*":
                ways += [(child, number + 1) for child in reversed(node.children.values())]
            elif (child := node.children.get(wanted[number])) is not None:
                ways.append((child, number + 1))
        yield found


class PatternTrie(_Trie[Value]):
    """Values by patterns, which may be plain names."""

    __slots__ = ()

    def add(self, pattern: Pattern, value: Value) -> None:
        """Once more makes no difference."""
        node = self._make(pattern.words)
        (node.open_values if pattern.is_open else node.values)[value] = None

    def remove(self, pattern: Pattern, value: Value) -> None:
        """KeyError when it is not there."""
        path = self._path(pattern.words)
        del (path[-1].open_values if pattern.is_open else path[-1].values)[value]
        self._prune(pattern.words, path)

    def matching(self, name: str) -> list[Value]:
        """The values of all patterns that match ``name``, each as often as it has such a pattern."""
        words = name.split(".")
        found: list[Value] = []
        ways = [(self._root, 0)]
        while ways:
            node, number = ways.pop()
            found += node.open_values
            if number == len(words):
                found += node.values
                continue
            next_words = {words[number], "*"} & node.children.keys()
            ways += [(node.children[word], number + 1) for word in next_words]
        return found
