"""Words of a selector, counted before it is parsed. Pure."""

from __future__ import annotations

import re
from typing import Final

#: Pattern of a name, a number, a text or a sign.
WORD: Final = re.compile(r"'[^']*'|[A-Za-z0-9_$.]+|\S")


def count_words(text: str) -> int:
    """Return an upper bound for the names, numbers, texts and signs of a selector."""
    return sum(1 for _ in WORD.finditer(text))
