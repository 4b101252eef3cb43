"""The client's process: python -m tests.support.ledger PROTOCOL SEED STEPS BOOK PORT...

Half of the steps, then all is taken and nothing is connected: it prints "drained" and waits for a line with the ports,
which may be others. Then the other half, at whose end a branch stays prepared.

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
        story = Story(Book(out), random.Random(int(seed)))
        client = client_of(protocol, rest)
        story.go_on(client, int(steps) // 2)
        story.drain()
        client.close()
        print("drained", flush=True)
        client = client_of(protocol, sys.stdin.readline().split())
        story.go_on(client, int(steps) // 2)
        if client.is_jms:
            story.prepare()
        client.close()
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "tandemmq")
    assert not loaded, f"the client shares code with what it judges: {loaded}"


if __name__ == "__main__":
    main(*sys.argv[1:])
