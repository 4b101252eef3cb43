"""Search tree of names and patterns by their words: a search visits only nodes that can match. Pure.

The cost of a search grows with its result and with the number of words, not with the other content.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from tandemmq.broker.core.names import Pattern
from tandemmq.broker.core.slices import Pace

Value = TypeVar("Value", bound=Hashable)


class _Node(Generic[Value]):
    """``words``: the words from the node above to this one, joined by dots; the root has none. ``values`` end here;
    ``open_values`` also take all words that follow.

    A node with one node below has values, so each name adds at most two nodes, however many words it has.

    ``words`` never change: where a new name differs, two nodes replace one and share its content. So a search that
    continues in a replaced node finds the content.
    """

    __slots__ = ("children", "open_values", "values", "words")

    def __init__(self, words: str = "") -> None:
        self.words = words
        self.children: dict[str, _Node[Value]] = {}  # by their first words
        self.values: dict[Value, None] = {}
        self.open_values: dict[Value, None] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.values or self.open_values)

    def with_words(self, words: list[str]) -> _Node[Value]:
        """Return the same node with other words."""
        node: _Node[Value] = _Node(".".join(words))
        node.children, node.values, node.open_values = self.children, self.values, self.open_values
        return node


class _Trie(Generic[Value]):
    """``count``: number of nodes without the root."""

    __slots__ = ("_root", "count")

    def __init__(self) -> None:
        self._root: _Node[Value] = _Node()
        self.count = 0

    def _make(self, words: list[str]) -> _Node[Value]:
        node, rest = self._root, words
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                child = node.children[rest[0]] = _Node(".".join(rest))
                self.count += 1
                return child
            own = child.words.split(".")
            alike = _alike(own, rest)
            if alike < len(own):
                upper: _Node[Value] = _Node(".".join(own[:alike]))
                upper.children[own[alike]] = child.with_words(own[alike:])
                child = node.children[rest[0]] = upper
                self.count += 1
            node, rest = child, rest[alike:]
        return node

    def _path(self, words: list[str]) -> list[_Node[Value]]:
        """Return the nodes from the root to the end of ``words``. KeyError when the words are not there."""
        path = [self._root]
        rest = words
        while rest:
            child = path[-1].children[rest[0]]
            own = child.words.split(".")
            if rest[: len(own)] != own:
                raise KeyError(rest[0])
            path.append(child)
            rest = rest[len(own) :]
        return path

    def _prune(self, path: list[_Node[Value]]) -> None:
        """Remove the last node if it is empty, and merge a node that only leads to one other."""
        if len(path) > 1 and path[-1].is_empty:
            node = path.pop()
            del path[-1].children[_first(node)]
            self.count -= 1
        node = path[-1]
        if len(path) > 1 and len(node.children) == 1 and not (node.values or node.open_values):
            (child,) = node.children.values()
            path[-2].children[_first(node)] = child.with_words([node.words, child.words])
            self.count -= 1


def _first(node: _Node[Value]) -> str:
    return node.words.partition(".")[0]


def _alike(some: list[str], others: list[str]) -> int:
    """Return the number of words at which both begin alike."""
    for number, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return number
    return min(len(some), len(others))


class NameTrie(_Trie[Value]):
    """Values by plain names."""

    __slots__ = ()

    def add(self, name: str, value: Value) -> None:
        """Add the value; a second time has no effect."""
        self._make(name.split(".")).values[value] = None

    def remove(self, name: str, value: Value) -> None:
        """Remove the value; without it, the call has no effect."""
        try:
            path = self._path(name.split("."))
        except KeyError:
            return
        path[-1].values.pop(value, None)
        self._prune(path)

    def matching(self, pattern: Pattern) -> Iterator[list[Value]]:
        """Yield the values of all names that ``pattern`` matches, in lists, one for each ITEMS visited nodes; a list
        may be empty. Names added or removed meanwhile are found or not."""
        wanted, is_open = pattern.words, pattern.is_open
        ways = [(self._root, 0)]
        found: list[Value] = []
        pace = Pace()
        while ways:
            if pace.is_full():
                yield found
                found = []
            node, number = ways.pop()
            own = [] if node is self._root else node.words.split(".")
            if len(own) > len(wanted) - number and not is_open:
                continue
            if not all(each in ("*", word) for each, word in zip(wanted[number:], own, strict=False)):
                continue
            number += len(own)
            if number >= len(wanted):
                found += node.values
                if is_open:
                    ways += [(child, number) for child in reversed(node.children.values())]
            elif wanted[number] == "*":
                ways += [(child, number) for child in reversed(node.children.values())]
            elif (child := node.children.get(wanted[number])) is not None:
                ways.append((child, number))
        yield found


class PatternTrie(_Trie[Value]):
    """Values by patterns, which may be plain names."""

    __slots__ = ()

    def add(self, pattern: Pattern, value: Value) -> None:
        """Add the value; a second time has no effect."""
        node = self._make(pattern.words)
        (node.open_values if pattern.is_open else node.values)[value] = None

    def remove(self, pattern: Pattern, value: Value) -> None:
        """Remove the value. KeyError when it is not there."""
        path = self._path(pattern.words)
        del (path[-1].open_values if pattern.is_open else path[-1].values)[value]
        self._prune(path)

    def matching(self, name: str) -> list[Value]:
        """Return the values of all patterns that match ``name``, each once for each such pattern."""
        words = name.split(".")
        found: list[Value] = []
        ways = [(self._root, 0)]
        while ways:
            node, number = ways.pop()
            if node is not self._root:
                own = node.words.split(".")
                if len(own) > len(words) - number:
                    continue
                if not all(each in ("*", word) for each, word in zip(own, words[number:], strict=False)):
                    continue
                number += len(own)
            found += node.open_values
            if number == len(words):
                found += node.values
                continue
            children = node.children
            ways += [(children[word], number) for word in {words[number], "*"} & children.keys()]
        return found
