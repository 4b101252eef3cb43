"""LIKE: ``%`` is any text, ``_`` any one character. The time is in proportion to the text, whatever the pattern.

A pattern is cut at its ``%``: the first piece must be at the start and the last piece at the end, and each piece
between is searched from the end of the previous one. The leftmost place is always sufficient, so no place is tried
twice.

A tiny piece without ``_`` is searched by ``str.find``. In some texts ``str.find`` compares a longer piece at every
place, so longer pieces are searched by ``re``, which reads a text once if the piece has no wildcard. A short piece with
``_`` is compared place by place; a long one is searched by Shift-And: bit n of a number is set if the first n + 1
characters of the piece end here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tandemmq.broker.core.selector.effort import Effort

# Characters of pieces with ``_`` between two ``%`` in one selector: each costs the length of the text once more.
SEARCHED_CHARACTERS_MAX = 1024
# Characters for one unit of effort: found by ``str.find``, compared place by place, and examined by Shift-And.
_FOUND = 128
_TRIED = 64
_SHIFTED = 2
# Maximum length of a piece that is compared place by place, and of one that ``str.find`` finds in linear time.
_SHORT = 32
_TINY = 4

_Piece = list[str]  # of characters; "" is ``_``
_Find = Callable[[str, int], int]  # end of the piece at or after a position; -1: not found


def like(pattern: str, escape: str | None, effort: Effort) -> Callable[[str], bool]:
    """Return a test for texts, which raises TooMuchWork. As in Classic, the escape character is plain unless a
    character follows that needs it."""
    pieces: list[_Piece] = [[]]
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == escape and pattern[position : position + 1] in ("_", "%", escape):
            pieces[-1].append(pattern[position])
            position += 1
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append("" if character == "_" else character)
    first, last = _compiled(pieces[0]), _compiled(pieces[-1])
    if len(pieces) == 1:
        return lambda text: first.fullmatch(text) is not None
    first_length, last_length = len(pieces[0]), len(pieces[-1])
    finds = [_find(piece, effort) for piece in pieces[1:-1] if piece]

    def test(text: str) -> bool:
        if first.match(text) is None:
            return False
        effort.spend(len(text) // _FOUND + len(finds))
        end = first_length
        for find in finds:
            end = find(text, end)
            if end < 0:
                return False
        start = len(text) - last_length
        return start >= end and last.match(text, start) is not None

    return test


def _compiled(piece: _Piece) -> re.Pattern[str]:
    return re.compile("".join(re.escape(character) if character else "." for character in piece), re.DOTALL)


def _find(piece: _Piece, effort: Effort) -> _Find:
    length = len(piece)
    if "" not in piece:
        if length > _TINY:
            return _search(_compiled(piece))  # prove: a-long-piece-takes-the-time-of-the-text
        whole = "".join(piece)

        def find(text: str, start: int) -> int:
            found = text.find(whole, start)
            return -1 if found < 0 else found + length

        return find

    if length <= _SHORT:
        search = _search(_compiled(piece))

        def find_short(text: str, start: int) -> int:
            effort.spend(length * (len(text) - start) // _TRIED)
            return search(text, start)

        return find_short
    return _shift_and(piece, effort)


def _search(piece: re.Pattern[str]) -> _Find:
    def find(text: str, start: int) -> int:
        found = piece.search(text, start)
        return -1 if found is None else found.end()

    return find


def _shift_and(piece: _Piece, effort: Effort) -> _Find:
    wild = sum(1 << place for place, character in enumerate(piece) if not character)
    places = dict.fromkeys(filter(None, piece), wild)
    for place, character in enumerate(piece):
        if character:
            places[character] |= 1 << place
    end = 1 << len(piece) - 1

    def find(text: str, start: int) -> int:
        effort.spend((len(text) - start) // _SHIFTED)
        reached = 0
        for position in range(start, len(text)):
            reached = (reached << 1 | 1) & places.get(text[position], wild)
            if reached & end:
                return position + 1
        return -1

    return find
