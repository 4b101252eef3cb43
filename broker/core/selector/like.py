"""LIKE: ``%`` is any run of characters, ``_`` is one. No pattern makes it slow.

A pattern is cut at its ``%``: what stands first must be at the start and what stands last at the end, and each piece
between is looked for from where the one before ended. The leftmost place is always good enough, so nothing is ever
tried twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# A piece with ``_`` that may be anywhere is compared place by place, which costs its length times that of the text;
# all others cost the text's length alone. This is for all such patterns of a selector together.
SEARCHED_CHARACTERS_MAX = 1024


def like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A test for texts. As in Classic the escape character is plain where nothing that needs it follows."""
    pieces: list[list[str]] = [[]]
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == escape and pattern[position : position + 1] in ("_", "%", escape):
            pieces[-1].append(re.escape(pattern[position]))
            position += 1
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if character == "_" else re.escape(character))
    if len(pieces) == 1:
        return _whole(re.compile("".join(pieces[0]), re.DOTALL))
    return _in_pieces([re.compile("".join(piece), re.DOTALL) for piece in pieces], len(pieces[-1]))


def _whole(piece: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: piece.fullmatch(text) is not None


def _in_pieces(pieces: list[re.Pattern[str]], last_length: int) -> Callable[[str], bool]:
    first, *between, last = pieces
    between = [piece for piece in between if piece.pattern]

    def test(text: str) -> bool:
        found = first.match(text)
        if found is None:
            return False
        for piece in between:
            found = piece.search(text, found.end())
            if found is None:
                return False
        start = len(text) - last_length
        return start >= found.end() and last.match(text, start) is not None

    return test
