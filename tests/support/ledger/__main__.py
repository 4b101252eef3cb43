"""The client's process: python -m tests.support.ledger PROTOCOL SEED STEPS BOOK PORT...

It ends with an error if any module of the product is loaded: what it writes must not come from what is tested.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.support.ledger.book import Book
from tests.support.ledger.clients import client_of
from tests.support.ledger.story import Story


def main(protocol: str, seed: str, steps: str, path: str, *rest: str) -> None:
    with Path(path).open("w") as out:
        client = client_of(protocol, rest)
        Story(client, Book(out), random.Random(int(seed))).go_on(int(steps))
        client.close()
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "tandemmq")
    assert not loaded, f"the client shares code with what it judges: {loaded}"


if __name__ == "__main__":
    main(*sys.argv[1:])
